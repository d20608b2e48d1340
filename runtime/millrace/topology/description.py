"""`Topology.describe()`: the text that Kafka Streams prints, byte for byte, and the same information as values.

People keep these texts with their applications and diff them on every upgrade, and tools draw them. The text is made from the
values, so the two always agree. Nodes are ordered by the number of paths below them; inside brackets and after
arrows, names are in the order of Java's collections (see `java_collections`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, Self

from millrace.java_collections import MutableKeyTreeSet, hash_order
from millrace.processor.api import TopicNameExtractor
from millrace.topology.physical_topology import Node, ProcessorNode, SourceNode


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
    """A processor, and the names of its stores and neighbours."""

    name: str
    stores: tuple[str, ...] = ()
    predecessors: tuple[str, ...] = ()
    successors: tuple[str, ...] = ()

    def __str__(self) -> str:
        head = f"Processor: {self.name} (stores: {_bracketed(self.stores)})"
        return f"{head}\n      --> {_names(self.successors)}\n      <-- {_names(self.predecessors)}"


@dataclass(frozen=True, slots=True)
class SinkDescription:
    """A sink, its topic or the function that chooses one per record, and the names of the nodes that send to it."""

    name: str
    topic: str | None = None
    topic_extractor: TopicNameExtractor | None = None
    predecessors: tuple[str, ...] = ()

    @property
    def successors(self) -> tuple[str, ...]:
        """A sink sends to no node."""
        return ()

    def __str__(self) -> str:
        extractor = self.topic_extractor
        name = getattr(extractor, "__name__", type(extractor).__name__)
        to = f"extractor class: {name}" if self.topic is None else f"topic: {self.topic}"
        return f"Sink: {self.name} ({to})\n      <-- {_names(self.predecessors)}"


NodeDescription = SourceDescription | ProcessorDescription | SinkDescription


@dataclass(frozen=True, slots=True)
class SubtopologyDescription:
    """The nodes of one sub-topology, sorted by the number of nodes below them, largest first."""

    id: int
    nodes: tuple[NodeDescription, ...]

    def __str__(self) -> str:
        return f"Sub-topology: {self.id}\n" + "".join(f"    {node}\n" for node in self.nodes) + "\n"


@dataclass(frozen=True, slots=True)
class GlobalStoreDescription:
    """A store that every instance fills itself: its source and the processor that fills it."""

    id: int
    source: SourceDescription
    processor: ProcessorDescription

    def __str__(self) -> str:
        head = f"Sub-topology: {self.id} for global store (will not generate tasks)"
        return f"{head}\n    {self.source}\n    {self.processor}\n"


class TopologyDescription(str):
    """The text of a topology, byte for byte what Kafka Streams prints, whose parts are available as attributes.

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
    """The sub-topologies whose tasks are distributed, by id."""
    global_stores: tuple[GlobalStoreDescription, ...]

    def __new__(
        cls, subtopologies: Sequence[SubtopologyDescription], global_stores: Sequence[GlobalStoreDescription]
    ) -> Self:
        """Assemble the text in order of ids; global stores fill the gaps."""
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
        """Return the arguments for making a copy."""
        return self.subtopologies, self.global_stores


def _bracketed(names: Sequence[str]) -> str:
    return f"[{', '.join(names)}]"


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


class _Described:
    """A node with its neighbours, and its size: one more than the sizes of all nodes it sends to."""

    __slots__ = ("name", "node", "place", "predecessors", "size", "successors")

    def __init__(self, node: Node, place: int) -> None:
        self.name = node.name
        self.node = node
        self.place = place
        """Later than the places of all nodes above."""
        self.size = 1
        self.predecessors: MutableKeyTreeSet[_Described] = MutableKeyTreeSet(_compare)
        self.successors: MutableKeyTreeSet[_Described] = MutableKeyTreeSet(_compare)

    def grow(self, amount: int) -> None:
        """Add nodes found below this one to its size, and to the sizes of all nodes above once for every path to them."""
        growing, amounts = [(-self.place, self)], {self.name: amount}
        while growing:
            _, node = heappop(growing)
            amount = amounts[node.name]
            node.size += amount
            for predecessor in node.predecessors:
                if predecessor.name not in amounts:
                    amounts[predecessor.name] = 0
                    heappush(growing, (-predecessor.place, predecessor))
                amounts[predecessor.name] += amount

    def described(self) -> NodeDescription:
        """Return the description; call it when all neighbours are known."""
        node = self.node
        before = tuple(other.name for other in self.predecessors)
        after = tuple(other.name for other in self.successors)
        if isinstance(node, SourceNode):
            return _source(node, after)
        if isinstance(node, ProcessorNode):
            return _processor(node, before, after)
        return SinkDescription(node.name, node.topic, node.topic_extractor, before)


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """The nodes of one sub-topology, in the order they were added."""

    id: int
    nodes: Sequence[Node]
    is_global: bool


def describe(groups: Sequence[NodeGroup]) -> TopologyDescription:
    """Return the description of all sub-topologies, in the order of their ids.

    Each global store is described separately; global stores of the same group have the same id.
    """
    return TopologyDescription(
        [_subtopology(group) for group in groups if not group.is_global],
        [store for group in groups if group.is_global for store in _global_stores(group)],
    )


def _subtopology(group: NodeGroup) -> SubtopologyDescription:
    parents: Mapping[str, tuple[str, ...]] = {
        node.name: () if isinstance(node, SourceNode) else node.parents for node in group.nodes
    }
    by_name = {node.name: _Described(node, place) for place, node in enumerate(group.nodes)}
    for name in hash_order(hash_order(by_name)):
        node = by_name[name]
        for parent in parents[name]:
            predecessor = by_name[parent]
            node.predecessors.add(predecessor)
            predecessor.successors.add(node)
            predecessor.grow(node.size)
    ordered = sorted(by_name.values(), key=lambda node: (-node.size, node.name))
    return SubtopologyDescription(group.id, tuple(node.described() for node in ordered))


def _global_stores(group: NodeGroup) -> list[GlobalStoreDescription]:
    result = []
    processors = [node for node in group.nodes if isinstance(node, ProcessorNode)]
    for source in group.nodes:
        if isinstance(source, SourceNode):
            processor = next(node for node in processors if source.name in node.parents)
            result.append(
                GlobalStoreDescription(
                    group.id, _source(source, (processor.name,)), _processor(processor, (source.name,), ())
                )
            )
    return result


def _source(node: SourceNode, successors: tuple[str, ...]) -> SourceDescription:
    pattern = None if node.pattern is None else node.pattern.pattern
    return SourceDescription(node.name, tuple(hash_order(node.topics, copied=True)), pattern, successors)


def _processor(node: ProcessorNode, predecessors: tuple[str, ...], successors: tuple[str, ...]) -> ProcessorDescription:
    stores = hash_order(hash_order(node.stores), copied=True)
    return ProcessorDescription(node.name, tuple(stores), predecessors, successors)


def _compare(one: _Described, other: _Described) -> int:
    if one is other:
        return 0
    if one.size != other.size:
        return other.size - one.size
    return -1 if one.name < other.name else 1
