"""`Topology`: a graph of sources, processors, stores and sinks that users assemble node by node (Processor API)."""

from __future__ import annotations

import re
from typing import Any, Self

from millrace.checks import (
    Suggesting,
    callback,
    instance,
    mistake,
    new_processors,
    placed,
    processor_supplier,
    serdes,
    store_builder,
    users_call,
)
from millrace.config import StreamsConfig
from millrace.processor.adapter import ProcessorFactory, stores_of
from millrace.processor.api import (
    ProcessorSupplier,
    StreamPartitioner,
    TimestampExtractor,
    TopicNameExtractor,
)
from millrace.serdes.base import AnySerde
from millrace.state.api import StoreBuilder
from millrace.topology.builder import TopologyBuilder
from millrace.topology.description import TopologyDescription
from millrace.topology.diagram import graphs_of_groups, svg
from millrace.topology.offset_reset import AutoOffsetReset
from millrace.topology.physical_topology import BuiltTopology, SinkNode, SourceNode


class Topology(Suggesting):
    """The processing graph of an application.

    Every `add_*` returns the topology, so that calls can be chained. Add parents before their children: the order
    determines the numbers of sub-topologies, and so the ids of tasks and their state. Notebooks show it as a picture.

    Example:
        >>> topology = Topology().add_source("lines", "in").add_sink("copy", "out", "lines")
        >>> print(topology.describe())
        Topologies:
           Sub-topology: 0
            Source: lines (topics: [in])
              --> copy
            Sink: copy (topic: out)
              <-- lines
        <BLANKLINE>
        <BLANKLINE>
    """

    def __init__(self, builder: TopologyBuilder | None = None) -> None:
        self._builder = builder or TopologyBuilder()

    def add_source(
        self,
        name: str,
        *topics: str,
        pattern: str | re.Pattern[str] | None = None,
        key_serde: AnySerde | None = None,
        value_serde: AnySerde | None = None,
        timestamp_extractor: TimestampExtractor | None = None,
        offset_reset: AutoOffsetReset | str | None = None,
    ) -> Self:
        """Read topics, or all topics whose whole name matches a pattern.

        Args:
            name: of the node.
            topics: to read; each topic can be read by only one source.
            pattern: instead of topics; re-evaluated whenever the cluster's topics change.
            key_serde: reads keys; None means `default.key.serde`.
            value_serde: reads values; None means `default.value.serde`.
            timestamp_extractor: determines the records' timestamps; None means `default.timestamp.extractor`.
            offset_reset: where to start without committed offsets; None means `auto.offset.reset`.

        Raises:
            TopologyError: the name is taken, nothing is read, or a topic is already read.
        """
        if topics and pattern is not None:
            raise mistake(f"Source {name} has both topics and a pattern; give one of them")
        serdes(key_serde=key_serde, value_serde=value_serde)
        for topic in topics:
            instance(topic, "topics", str, "names of topics", "give several as further arguments")
        if timestamp_extractor is not None:
            callback(timestamp_extractor, "timestamp_extractor", "record, partition_time")
        node = SourceNode(
            name,
            topics,
            re.compile(pattern) if isinstance(pattern, str) else pattern,
            key_serde,
            value_serde,
            timestamp_extractor,
            AutoOffsetReset.policy_of(offset_reset),
        )
        with placed(users_call().place):
            self._builder.add_source(node)
        return self

    def add_processor(self, name: str, supplier: ProcessorSupplier[Any, Any, Any, Any], *parents: str) -> Self:
        """Run a processor on the records of its parents; the supplier is called once per task.

        Unless it is a class it is also called twice here, as in Java, to check that it makes a new processor each time.

        If the supplier has a method `stores()`, these state stores are added and connected to the processor.

        Raises:
            TopologyError: the name is taken, or a parent is unknown.
        """
        processor_supplier(supplier, "process")
        new_processors(supplier, name)
        with placed(users_call().place):
            self._builder.add_processor(name, ProcessorFactory(supplier), parents)
            for store in stores_of(supplier):
                self._builder.add_state_store(store, (name,))
        return self

    def add_sink(
        self,
        name: str,
        topic: str | TopicNameExtractor,
        *parents: str,
        key_serde: AnySerde | None = None,
        value_serde: AnySerde | None = None,
        partitioner: StreamPartitioner | None = None,
    ) -> Self:
        """Write the records of its parents to a topic, or to topics that a function chooses per record.

        Raises:
            TopologyError: the name is taken, or a parent is unknown.
        """
        serdes(key_serde=key_serde, value_serde=value_serde)
        if callable(topic):
            callback(topic, "topic", "key, value, context")
        else:
            instance(topic, "topic", str, "the name of a topic, or a function of key, value and context")
        if partitioner is not None:
            callback(partitioner, "partitioner", "topic, key, value, number_of_partitions")
        node = SinkNode(
            name,
            parents,
            topic if isinstance(topic, str) else None,
            None if isinstance(topic, str) else topic,
            key_serde,
            value_serde,
            partitioner,
        )
        with placed(users_call().place):
            self._builder.add_sink(node)
        return self

    def add_state_store(self, builder: StoreBuilder, *processors: str) -> Self:
        """Add a state store and connect it to processors.

        Raises:
            TopologyError: another store has that name, or a processor is unknown.
        """
        store_builder(builder)
        with placed(users_call().place):
            self._builder.add_state_store(builder, processors)
        return self

    def connect_processor_and_state_stores(self, processor: str, *stores: str) -> Self:
        """Let a processor use stores that have been added.

        Raises:
            TopologyError: the processor or a store is unknown, or the store is global.
        """
        if not stores:
            raise mistake(f"No stores are given to connect to processor {processor}")
        with placed(users_call().place):
            self._builder.connect_processor_and_state_stores(processor, stores)
        return self

    def add_global_store(
        self,
        builder: StoreBuilder,
        source_name: str,
        topic: str,
        processor_name: str,
        supplier: ProcessorSupplier[Any, Any, Any, Any],
        *,
        key_serde: AnySerde | None = None,
        value_serde: AnySerde | None = None,
        timestamp_extractor: TimestampExtractor | None = None,
    ) -> Self:
        """Add a store that every instance fills with a whole topic; all processors can read it.

        Args:
            builder: of the store; it must not log its changes.
            source_name: of the node that reads the topic.
            topic: to fill the store from.
            processor_name: of the node that updates the store.
            supplier: of the processor that puts records into the store; restoration bypasses it.
            key_serde: reads keys.
            value_serde: reads values.
            timestamp_extractor: determines the records' timestamps.

        Raises:
            TopologyError: a name is taken, or the store logs its changes.
        """
        store_builder(builder)
        processor_supplier(supplier, "process")
        new_processors(supplier, processor_name)
        serdes(key_serde=key_serde, value_serde=value_serde)
        source = SourceNode(source_name, (topic,), None, key_serde, value_serde, timestamp_extractor)
        with placed(users_call().place):
            self._builder.add_global_store(
                builder, source=source, processor_name=processor_name, factory=ProcessorFactory(supplier)
            )
        return self

    def add_read_only_state_store(
        self,
        builder: StoreBuilder,
        source_name: str,
        topic: str,
        processor_name: str,
        supplier: ProcessorSupplier[Any, Any, Any, Any],
        *,
        key_serde: AnySerde | None = None,
        value_serde: AnySerde | None = None,
        timestamp_extractor: TimestampExtractor | None = None,
    ) -> Self:
        """Add a store that is a partitioned copy of a topic and restored from it (KIP-813).

        As in Java, other processors that are connected to it are trusted not to write to it: what they write is not in the topic,
        and is lost when the store is restored.

        Raises:
            TopologyError: a name is taken.
        """
        self.add_source(
            source_name,
            topic,
            key_serde=key_serde,
            value_serde=value_serde,
            timestamp_extractor=timestamp_extractor,
            offset_reset=AutoOffsetReset.EARLIEST,
        )
        self.add_processor(processor_name, supplier, source_name)
        self.add_state_store(builder, processor_name)
        self._builder.use_source_as_changelog(builder.name, topic)
        return self

    def describe(self) -> TopologyDescription:
        """Return the text that Kafka Streams prints for this topology; sub-topologies and nodes are its attributes."""
        return self._builder.describe()

    def __repr__(self) -> str:
        groups = self._builder.groups()
        return f"Topology({len(groups)} sub-topologies, {len(self._builder.nodes)} nodes, {len(self._builder.stores)} stores)"

    def _repr_svg_(self) -> str:
        """Return the picture that notebooks show, as `millrace describe --format svg` draws it."""
        return svg(graphs_of_groups(self._builder.groups()))

    def build(self, config: StreamsConfig) -> BuiltTopology:
        """Resolve the topology for an application: full topic names, their configuration, sub-topologies.

        Raises:
            TopologyError: it is empty, or internal resources have generated names although the configuration forbids it.
        """
        instance(config, "config", StreamsConfig, "a StreamsConfig", "make one with StreamsConfig.of(…)")
        if not self._builder.nodes:
            raise mistake("The topology is empty: it reads nothing. Call stream(), table() or add_source() first")
        return self._builder.build(config)
