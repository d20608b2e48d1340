"""Repartitioning: records are written to an internal topic by a sink, and read back by a source, partitioned by their new key.

Operators add one where the key has changed (`stream_aggregation`, `stream_joins`, `kstream`, `grouped_table`), and `optimizer`
merges several into one.
"""

from __future__ import annotations

import re

from millrace.dsl.graph.nodes import GraphNode
from millrace.dsl.names import Names
from millrace.errors import TopologyError
from millrace.processor.api import StreamPartitioner
from millrace.processor.node import NodeContext, ProcessFn
from millrace.processor.timestamp_extractors import fail_on_invalid_timestamp
from millrace.records import Headers
from millrace.serdes.base import AnySerde
from millrace.topology.builder import TopologyBuilder
from millrace.topology.physical_topology import RepartitionTopic, SinkNode, SourceNode

REPARTITION_SUFFIX = "-repartition"
FILTER = "KSTREAM-FILTER-"
SINK = "KSTREAM-SINK-"
SOURCE = "KSTREAM-SOURCE-"
_GENERATED_STREAM_NAME = re.compile(r"KSTREAM.*-[0-9]{10}")
"""Base names with which the nodes around a repartition topic have generated names too."""


class Repartition(GraphNode):
    """Filter, sink and source around a repartition topic. It has the name of the source."""

    def __init__(
        self,
        names: Names,
        base_name: str,
        *,
        key_serde: AnySerde | None,
        value_serde: AnySerde | None,
        partitioner: StreamPartitioner | None = None,
        partitions: int | None = None,
        name_is_generated: bool = True,
        mergeable: bool = True,
    ) -> None:
        topic = base_name if base_name.endswith(REPARTITION_SUFFIX) else base_name + REPARTITION_SUFFIX
        sink, keep, source = names.processor(SINK), names.processor(FILTER), names.processor(SOURCE)
        if not _GENERATED_STREAM_NAME.fullmatch(base_name):
            sink, keep, source = f"{topic}-sink", f"{topic}-filter", f"{topic}-source"
        super().__init__(source)
        self.topic = RepartitionTopic(topic, partitions, partitions is not None)
        self.key_serde = key_serde
        self.value_serde = value_serde
        self.partitioner = partitioner
        self.name_is_generated = name_is_generated
        self.mergeable = mergeable
        self.keeps_null_keys = False
        self._filter = keep
        self._sink = sink

    @property
    def origin(self) -> str:
        """The parents, and the topic in between."""
        return f"{super().origin} through {self.topic.name}"

    def write(self, topology: TopologyBuilder) -> None:
        """Add the topic, the filter, the sink and the source.

        Raises:
            TopologyError: another repartition topic has the name, as with unnamed streams of a cogroup.
        """
        if self._filter in topology.nodes:
            raise TopologyError(
                f"Two repartition topics would be named {self.topic.name}. Give each its own name where the stream is grouped, "
                'joined or repartitioned, such as group_by_key(Grouped.as_("…")): streams of one cogroup need this if their keys '
                "have changed"
            )
        topology.add_internal_topic(self.topic)
        if self.name_is_generated:
            topology.note_generated_topic(self.topic.name, self.call)
        topology.add_processor(self._filter, self._compile_filter, self.parent_names)
        topology.add_sink(
            SinkNode(
                self._sink,
                (self._filter,),
                self.topic.name,
                key_serde=self.key_serde,
                value_serde=self.value_serde,
                partitioner=self.partitioner,
            )
        )
        topology.add_source(
            SourceNode(
                self.name,
                (self.topic.name,),
                key_serde=self.key_serde,
                value_serde=self.value_serde,
                timestamp_extractor=fail_on_invalid_timestamp,
            )
        )

    def feeds_null_keeping_join(self) -> bool:
        """Return whether a join that keeps records with null keys comes before the next repartition topic."""
        pending = list(self.children)
        while pending:
            node = pending.pop()
            if node.takes_null_keys:
                return True
            if not isinstance(node, Repartition):
                pending.extend(node.children)
        return False

    def _compile_filter(self, node: NodeContext) -> ProcessFn:
        forward = node.forward
        if self.keeps_null_keys:
            return forward

        def process(key: object, value: object, timestamp: int, headers: Headers) -> None:
            if key is not None:
                forward(key, value, timestamp, headers)

        return process


class TableRepartition(GraphNode):
    """Sink and source around the repartition topic of a grouped table, whose records are changes."""

    def __init__(
        self,
        *,
        sink: str,
        source: str,
        topic: str,
        key_serde: AnySerde | None,
        change_serde: AnySerde,
        name_is_generated: bool,
    ) -> None:
        super().__init__(source)
        self.topic = RepartitionTopic(topic)
        self.key_serde = key_serde
        self.change_serde = change_serde
        self.name_is_generated = name_is_generated
        self._sink = sink

    @property
    def output_versioned(self) -> bool | None:
        """Updates that went through a repartition topic are not versioned."""
        return False

    def write(self, topology: TopologyBuilder) -> None:
        """Add the topic, the sink and the source."""
        topology.add_internal_topic(self.topic)
        if self.name_is_generated:
            topology.note_generated_topic(self.topic.name, self.call)
        topology.add_sink(
            SinkNode(
                self._sink,
                self.parent_names,
                self.topic.name,
                key_serde=self.key_serde,
                value_serde=self.change_serde,
            )
        )
        topology.add_source(
            SourceNode(
                self.name,
                (self.topic.name,),
                key_serde=self.key_serde,
                value_serde=self.change_serde,
                timestamp_extractor=fail_on_invalid_timestamp,
            )
        )
