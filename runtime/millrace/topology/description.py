"""What `Topology.describe()` returns: the text that Kafka Streams prints, and what it says as values.

The text is made of the values, so both always agree. Orders in it are Java's (see `describe`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from millrace.processor.api import TopicNameExtractor


@dataclass(frozen=True, slots=True)
class SourceDescription:
    """A source, the topics it reads or their pattern, and the names of the nodes it sends to."""

    name: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    successors: tuple[str, ...] = ()

    @property
    def predecessors(self) -> tuple[str, ...]:
        """Nothing sends to a source."""
        return ()

    def __str__(self) -> str:
        topics = self.pattern if self.pattern is not None else _bracketed(self.topics)
        return f"Source: {self.name} (topics: {topics})\n      --> {_names(self.successors)}"


@dataclass(frozen=True, slots=True)
class ProcessorDescription:
    """A processor, the names of its stores, and those of its neighbours."""

    name: str
    stores: tuple[str, ...] = ()
    predecessors: tuple[str, ...] = ()
    successors: tuple[str, ...] = ()

    def __str__(self) -> str:
        head = f"Processor: {self.name} (stores: {_bracketed(self.stores)})"
        return f"{head}\n      --> {_names(self.successors)}\n      <-- {_names(self.predecessors)}"


@dataclass(frozen=True, slots=True)
class SinkDescription:
    """A sink, its topic or what chooses one for each record, and the names of the nodes that send to it."""

    name: str
    topic: str | None = None
    topic_extractor: TopicNameExtractor | None = None
    predecessors: tuple[str, ...] = ()

    @property
    def successors(self) -> tuple[str, ...]:
        """A sink sends to no node."""
        return ()

    def __str__(self) -> str:
        to = (
            f"extractor class: {_callable_name(self.topic_extractor)}" if self.topic is None else f"topic: {self.topic}"
        )
        return f"Sink: {self.name} ({to})\n      <-- {_names(self.predecessors)}"


NodeDescription = SourceDescription | ProcessorDescription | SinkDescription


@dataclass(frozen=True, slots=True)
class SubtopologyDescription:
    """The nodes of one sub-topology, those with the most nodes below them first."""

    id: int
    nodes: tuple[NodeDescription, ...]

    def __str__(self) -> str:
        return f"Sub-topology: {self.id}\n" + "".join(f"    {node}\n" for node in self.nodes) + "\n"


@dataclass(frozen=True, slots=True)
class GlobalStoreDescription:
    """A store that every instance fills itself: the source it is filled from, and the processor that does it."""

    id: int
    source: SourceDescription
    processor: ProcessorDescription

    def __str__(self) -> str:
        head = f"Sub-topology: {self.id} for global store (will not generate tasks)"
        return f"{head}\n    {self.source}\n    {self.processor}\n"


class TopologyDescription(str):
    """The text of a topology, equal to the byte to what Kafka Streams prints, which is also read by its parts.

    Example:
        >>> from millrace.topology import Topology
        >>> description = Topology().add_source("lines", "in").add_sink("copy", "out", "lines").describe()
        >>> description.splitlines()[1].strip()
        'Sub-topology: 0'
        >>> source, sink = description.subtopologies[0].nodes
        >>> source.topics, source.successors, sink.topic
        (('in',), ('copy',), 'out')
    """

    __slots__ = ("global_stores", "subtopologies")

    subtopologies: tuple[SubtopologyDescription, ...]
    """Those whose tasks are distributed, by id."""
    global_stores: tuple[GlobalStoreDescription, ...]

    def __new__(
        cls, subtopologies: Sequence[SubtopologyDescription], global_stores: Sequence[GlobalStoreDescription]
    ) -> Self:
        """Put the text together: by id, and where ids of global stores leave a gap, those come in between."""
        tasks, stores = list(subtopologies), list(global_stores)
        text = "Topologies:\n "
        expected = 0
        while tasks and stores:
            text += f"  {tasks.pop(0) if tasks[0].id == expected else stores.pop(0)}"
            expected += 1
        result = super().__new__(cls, text + "".join(f"  {part}" for part in (*tasks, *stores)))
        result.subtopologies = tuple(subtopologies)
        result.global_stores = tuple(global_stores)
        return result

    def __getnewargs__(self) -> Any:
        """Return what a copy is made of."""
        return self.subtopologies, self.global_stores


def _bracketed(names: Sequence[str]) -> str:
    return f"[{', '.join(names)}]"


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _callable_name(function: Any) -> str:
    name: str = getattr(function, "__name__", type(function).__name__)
    return name
