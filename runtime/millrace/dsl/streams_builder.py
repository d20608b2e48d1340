"""`StreamsBuilder`: where a topology begins."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar, overload

from millrace.checks import (
    Suggesting,
    mistake,
    new_processors,
    option,
    placed,
    processor_supplier,
    store_builder,
    users_call,
    wrong,
)
from millrace.config import StreamsConfig
from millrace.dsl.global_table import GlobalKTable
from millrace.dsl.graph.builder import GraphBuilder
from millrace.dsl.graph.nodes import GlobalStoreStep, StoreStep
from millrace.dsl.graph.sources import StreamSource, TableSource
from millrace.dsl.kstream import KStream
from millrace.dsl.ktable import KTable
from millrace.dsl.names import topic_name
from millrace.dsl.options.consumed import Consumed
from millrace.dsl.options.materialized import Materialized
from millrace.dsl.processors.table_operators import TableSourceProcessor
from millrace.dsl.processors.tables import store_view
from millrace.dsl.stores import table_options
from millrace.processor.adapter import ProcessorFactory
from millrace.processor.api import ProcessorSupplier
from millrace.serdes.base import AnySerde
from millrace.state.api import StoreBuilder
from millrace.topology import Topology
from millrace.topology.offset_reset import AutoOffsetReset
from millrace.topology.physical_topology import SourceNode

K = TypeVar("K")
V = TypeVar("V")

STREAM_SOURCE = "KSTREAM-SOURCE-"
TABLE_SOURCE = "KTABLE-SOURCE-"


class StreamsBuilder(Suggesting):
    """Collects the operators, and builds the topology."""

    def __init__(self) -> None:
        self._graph = GraphBuilder(KStream)

    @overload
    def stream(self, topics: str | Iterable[str] | re.Pattern[str], consumed: None = None) -> KStream[Any, Any]: ...
    @overload
    def stream(self, topics: str | Iterable[str] | re.Pattern[str], consumed: Consumed[K, V]) -> KStream[K, V]: ...
    def stream(
        self, topics: str | Iterable[str] | re.Pattern[str], consumed: Consumed[Any, Any] | None = None
    ) -> KStream[Any, Any]:
        """Read topics, or all that match a pattern, as a stream.

        Args:
            topics: one, several, or a compiled pattern, which is evaluated again when topics are added or removed.
            consumed: serdes, timestamp extractor, offset reset and name.

        Example:
            >>> import re
            >>> builder = StreamsBuilder()
            >>> builder.stream(["orders", "returns"]).to("all")
            >>> builder.stream(re.compile("clicks-.*")).to("clicks")
            >>> [line[line.index("(") :] for line in builder.build().describe().splitlines() if "Source" in line]
            ['(topics: [orders, returns])', '(topics: clicks-.*)']
        """
        options: Consumed[Any, Any] = option(consumed, "consumed", Consumed)
        if isinstance(topics, re.Pattern) and not isinstance(topics.pattern, str):
            raise wrong("the pattern", "one of text, such as re.compile('in-.*')", topics)
        pattern, listed = (topics, ()) if isinstance(topics, re.Pattern) else (None, _topics(topics))
        name = self._graph.names.processor(STREAM_SOURCE, options.name)
        node = StreamSource(
            name,
            listed,
            pattern,
            key_serde=options.key_serde,
            value_serde=options.value_serde,
            timestamp_extractor=options.timestamp_extractor,
            offset_reset=AutoOffsetReset.policy_of(options.offset_reset),
        )
        self._graph.add(self._graph.root, node)
        return KStream(
            self._graph,
            name,
            node,
            sources=(name,),
            key_serde=options.key_serde,
            value_serde=options.value_serde,
        )

    @overload
    def table(self, topic: str, materialized: str | None = None, *, consumed: None = None) -> KTable[Any, Any]: ...
    @overload
    def table(
        self,
        topic: str,
        materialized: Materialized[K, V] | str | None = None,
        *,
        consumed: Consumed[K, V] | None = None,
    ) -> KTable[K, V]: ...
    @overload
    def table(
        self, topic: str, consumed: Consumed[K, V], materialized: Materialized[K, V] | str | None = None, /
    ) -> KTable[K, V]: ...
    def table(
        self,
        topic: str,
        materialized: Materialized[Any, Any] | Consumed[Any, Any] | str | None = None,
        consumed: Materialized[Any, Any] | Consumed[Any, Any] | str | None = None,
    ) -> KTable[Any, Any]:
        """Read a topic as a table: each record is the new value of its key, and one without a value deletes it.

        Args:
            topic: its keys are the table's.
            materialized: how the table is kept; a name makes it queryable. Without it the table is kept only if needed.
            consumed: how the topic is read. As in Java, it may also come first.

        Example:
            >>> builder = StreamsBuilder()
            >>> builder.table("prices", "prices-by-item").to_stream().to("changes")
            >>> "(stores: [prices-by-item])" in builder.build().describe()
            True
        """
        kept, read = _in_order(materialized, consumed)
        consume: Consumed[Any, Any] = option(read, "consumed", Consumed)
        options = table_options(kept, self._graph.names, f"{topic}-")
        options = options.with_defaults(consume.key_serde, consume.value_serde)
        source, name = self._source(topic, consume, options.option.key_serde, options.option.value_serde)
        node = TableSource(name, source, options.store())
        self._graph.add(self._graph.root, node)
        return KTable._from_node(self._graph, node, node.processor, options, sources=(source.name,))  # noqa: SLF001 (one facade)

    @overload
    def global_table(
        self, topic: str, materialized: str | None = None, *, consumed: None = None
    ) -> GlobalKTable[Any, Any]: ...
    @overload
    def global_table(
        self,
        topic: str,
        materialized: Materialized[K, V] | str | None = None,
        *,
        consumed: Consumed[K, V] | None = None,
    ) -> GlobalKTable[K, V]: ...
    @overload
    def global_table(
        self, topic: str, consumed: Consumed[K, V], materialized: Materialized[K, V] | str | None = None, /
    ) -> GlobalKTable[K, V]: ...
    def global_table(
        self,
        topic: str,
        materialized: Materialized[Any, Any] | Consumed[Any, Any] | str | None = None,
        consumed: Materialized[Any, Any] | Consumed[Any, Any] | str | None = None,
    ) -> GlobalKTable[Any, Any]:
        """Read all partitions of a topic as a table in every instance; streams can be joined with it by any key.

        Args:
            topic: its keys are the table's; it is also the table's changelog.
            materialized: how the table is kept; a name makes it queryable.
            consumed: how the topic is read. As in Java, it may also come first.

        Example:
            >>> builder = StreamsBuilder()
            >>> names = builder.global_table("names", "names-by-id")
            >>> names.queryable_store_name
            'names-by-id'
        """
        kept, read = _in_order(materialized, consumed)
        consume: Consumed[Any, Any] = option(read, "consumed", Consumed)
        options = table_options(kept, self._graph.names, f"{topic}-")
        options = options.with_defaults(consume.key_serde, consume.value_serde)
        source, name = self._source(topic, consume, options.option.key_serde, options.option.value_serde)
        store = replace(options, option=options.option.with_logging_disabled()).store()
        if store.versioned:
            raise mistake(f"Global table {options.store_name} cannot be versioned; use a key-value store")
        processor = TableSourceProcessor(options.store_name, materialized=True, on_materialize=lambda: None)
        self._graph.add(self._graph.root, GlobalStoreStep(store, source, name, processor))
        return GlobalKTable(store_view(options.store_name), options.queryable_name, topic)

    def add_global_store(
        self,
        store: StoreBuilder,
        topic: str,
        supplier: ProcessorSupplier[Any, Any, Any, Any] | Consumed[Any, Any],
        consumed: Consumed[Any, Any] | ProcessorSupplier[Any, Any, Any, Any] | None = None,
    ) -> StreamsBuilder:
        """Add a store that every instance fills with a whole topic, through a processor that you supply.

        Args:
            store: its logging must be disabled: the topic is its changelog.
            topic: the topic to fill it from.
            supplier: returns the processor, which must put each record into the store unchanged, or drop it.
            consumed: how the topic is read. As in Java, it may also come before the supplier.

        Example:
            >>> from millrace.processor import Processor
            >>> from millrace.serdes import Serdes
            >>> from millrace.state import Stores
            >>> class Fill(Processor):
            ...     def process(self, record):
            ...         self.context.get_state_store("names").put(record.key, record.value)
            >>> store = Stores.key_value_store_builder(
            ...     Stores.in_memory_key_value_store("names"), Serdes.string(), Serdes.string()
            ... ).with_logging_disabled()
            >>> builder = StreamsBuilder().add_global_store(store, "names-topic", Fill)
            >>> "for global store (will not generate tasks)" in builder.build().describe()
            True
        """
        make: Any = supplier
        given: Any = consumed
        if isinstance(supplier, Consumed):
            make, given = consumed, supplier
        store_builder(store)
        processor_supplier(make, "process", instead={"FixedKeyProcessor": "it must be a Processor"})
        consume: Consumed[Any, Any] = option(given, "consumed", Consumed)
        source, name = self._source(topic, consume, consume.key_serde, consume.value_serde)
        new_processors(make, name)
        self._graph.add(self._graph.root, GlobalStoreStep(store, source, name, ProcessorFactory(make)))
        return self

    def add_state_store(self, store: StoreBuilder) -> StreamsBuilder:
        """Add a store that processors refer to by name.

        Example:
            >>> from millrace.processor import Processor
            >>> from millrace.serdes import Serdes
            >>> from millrace.state import Stores
            >>> class Remember(Processor):
            ...     def process(self, record):
            ...         self.context.get_state_store("last").put(record.key, record.value)
            >>> supplier = Stores.persistent_key_value_store("last")
            >>> builder = StreamsBuilder()
            >>> _ = builder.add_state_store(Stores.key_value_store_builder(supplier, Serdes.string(), Serdes.string()))
            >>> _ = builder.stream("in").process(Remember, "last")
            >>> "(stores: [last])" in builder.build().describe()
            True
        """
        store_builder(store)
        self._graph.add(self._graph.root, StoreStep(store))
        return self

    def build(self, config: StreamsConfig | Mapping[str, Any] | None = None) -> Topology:
        """Return the topology, optimised only if the configuration says so.

        Args:
            config: the application's settings, or None; `topology.optimization` is read only here.

        Raises:
            TopologyError: a name is used twice, or a store is unknown. Operators are not added after it.

        Example:
            >>> builder = StreamsBuilder()
            >>> builder.stream("in").to("out")
            >>> print(builder.build({"application.id": "app", "topology.optimization": "all"}).describe().splitlines()[2].strip())
            Source: KSTREAM-SOURCE-0000000000 (topics: [in])
        """
        settings = None if config is None else StreamsConfig.of(config)
        with placed(users_call().place):
            return Topology(self._graph.compile(settings))

    def _source(
        self, topic: str, consumed: Consumed[Any, Any], key_serde: AnySerde | None, value_serde: AnySerde | None
    ) -> tuple[SourceNode, str]:
        """Return the source of a table's topic, and the name of the node that fills the table."""
        topic_name(topic)
        source_name = self._graph.names.processor(STREAM_SOURCE, consumed.name, "-source")
        name = self._graph.names.processor(TABLE_SOURCE, consumed.name)
        reset = AutoOffsetReset.policy_of(consumed.offset_reset)
        extractor = consumed.timestamp_extractor
        return SourceNode(source_name, (topic,), None, key_serde, value_serde, extractor, reset), name


def _topics(topics: str | Iterable[str]) -> tuple[str, ...]:
    """Return the topics to read.

    Raises:
        TopologyError: there are none, or one cannot be a topic.
    """
    if not isinstance(topics, Iterable):
        raise wrong("topics", "a text, several, or a pattern", topics)
    found = (topics,) if isinstance(topics, str) else tuple(topics)
    if not found:
        raise wrong("topics", "at least one topic", topics)
    return tuple(map(topic_name, found))


def _in_order(
    materialized: Materialized[Any, Any] | Consumed[Any, Any] | str | None,
    consumed: Materialized[Any, Any] | Consumed[Any, Any] | str | None,
) -> tuple[Any, Any]:
    """Return the two options in this order, in whichever order they were given: their types differ."""
    if isinstance(materialized, Consumed) or isinstance(consumed, Materialized | str):
        return consumed, materialized
    return materialized, consumed
