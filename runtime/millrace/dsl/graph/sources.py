"""Sources: streams and tables read from topics. Sources of exactly the same topics are merged into one."""

from __future__ import annotations

import re
from collections.abc import Iterable

from millrace.checks import at
from millrace.dsl.graph.nodes import GraphNode
from millrace.dsl.processors.table_operators import TableSourceProcessor
from millrace.dsl.stores import TableStoreSpec
from millrace.errors import TopologyError
from millrace.processor.api import TimestampExtractor
from millrace.serdes.base import AnySerde
from millrace.topology.builder import TopologyBuilder
from millrace.topology.physical_topology import SourceNode

_MOST_TOPICS = 5
"""How many topics of a source are shown."""


class StreamSource(GraphNode):
    """A stream read from topics or from all topics that match a pattern."""

    def __init__(
        self,
        name: str,
        topics: Iterable[str] = (),
        pattern: re.Pattern[str] | None = None,
        *,
        key_serde: AnySerde | None = None,
        value_serde: AnySerde | None = None,
        timestamp_extractor: TimestampExtractor | None = None,
        offset_reset: str | None = None,
    ) -> None:
        super().__init__(name)
        self.topics = tuple(dict.fromkeys(topics))
        self.pattern = pattern
        self.key_serde = key_serde
        self.value_serde = value_serde
        self.timestamp_extractor = timestamp_extractor
        self.offset_reset = offset_reset

    @property
    def origin(self) -> str:
        """What it reads."""
        if self.pattern is not None:
            return f"reads topics that match {self.pattern.pattern}"
        more = f" and {len(self.topics) - _MOST_TOPICS} more" if len(self.topics) > _MOST_TOPICS else ""
        return f"reads {', '.join(self.topics[:_MOST_TOPICS])}{more}"

    def absorb(self, other: StreamSource) -> None:
        """Take over the children of a source of the same topics.

        Raises:
            TopologyError: the two have different offset resets.
        """
        if other.offset_reset is not None and other.offset_reset != self.offset_reset:
            raise TopologyError(
                f"Sources {self.name} and {other.name} read the same topics with different offset resets "
                f"({self.offset_reset}, {other.offset_reset}); give both the same{at(other.call.place)}"
            )
        for child in other.children:
            self.add_child(child)
            other.remove_child(child)

    def write(self, topology: TopologyBuilder) -> None:
        """Add the source."""
        topology.add_source(
            SourceNode(
                self.name,
                self.topics,
                self.pattern,
                self.key_serde,
                self.value_serde,
                self.timestamp_extractor,
                self.offset_reset,
            )
        )


class TableStep(GraphNode):
    """A table made from a stream: the processor that keeps the latest value of each key, and its store if anything needs it."""

    def __init__(self, name: str, store: TableStoreSpec) -> None:
        super().__init__(name)
        self.store = store
        self.materialized = not store.generated_name
        self.processor = TableSourceProcessor(
            store.name, materialized=self.materialized, on_materialize=self.materialize
        )

    def materialize(self) -> None:
        """Keep the table in its store."""
        self.materialized = True

    @property
    def output_versioned(self) -> bool | None:
        """Whether the table is kept in a versioned store."""
        return self.materialized and self.store.versioned

    def write(self, topology: TopologyBuilder) -> None:
        """Add the processor, and the store if anything needs it."""
        topology.add_processor(self.name, self.processor, self.parent_names)
        if self.materialized:
            topology.add_state_store(self.store, (self.name,))


class TableSource(TableStep):
    """A table read from a topic: a source and the processor that keeps the latest value of each key."""

    def __init__(self, name: str, source: SourceNode, store: TableStoreSpec) -> None:
        super().__init__(name, store)
        self.source = source
        self.reuse_source_topic = False

    @property
    def origin(self) -> str:
        """What it reads."""
        return f"reads {self.source.topics[0]}"

    @property
    def output_versioned(self) -> bool | None:
        """Whether the table would be kept in a versioned store."""
        return self.store.versioned

    def write(self, topology: TopologyBuilder) -> None:
        """Add source and processor, and the store if anything needs it."""
        topology.add_source(self.source)
        topology.add_processor(self.name, self.processor, (self.source.name,))
        if self.materialized:
            topology.add_state_store(self.store, (self.name,))
            if self.reuse_source_topic:
                topology.use_source_as_changelog(self.store.name, self.source.topics[0])


def merge_duplicate_sources(root: GraphNode) -> None:
    """Let streams of exactly the same topics (or the same pattern) share a source.

    Raises:
        TopologyError: the topics of two sources overlap but are not the same.
    """
    by_topic: dict[str, StreamSource] = {}
    by_pattern: dict[tuple[str, int], StreamSource] = {}
    for node in root.children:
        if not isinstance(node, StreamSource):
            continue
        if node.pattern is not None:
            first = by_pattern.setdefault((node.pattern.pattern, node.pattern.flags), node)
            if first is not node:
                first.absorb(node)
                root.remove_child(node)
            continue
        for topic in node.topics:
            first = by_topic.setdefault(topic, node)
            if first is node:
                continue
            if set(first.topics) != set(node.topics):
                raise TopologyError(
                    f"Sources {first.name} ({', '.join(first.topics)}) and {node.name} ({', '.join(node.topics)}) overlap "
                    f"in topic {topic} without reading the same topics; read each topic with one stream and merge them"
                )
            first.absorb(node)
            root.remove_child(node)
            break
