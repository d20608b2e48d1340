"""Describes a topology in the orders of Kafka Streams, so that the text is equal to the byte to what it prints for the same one.

People keep these texts beside their applications and diff them on every upgrade, and tools draw them. Nodes are ordered by
the number of paths below them; the orders inside brackets and arrows are those of Java's collections (see `java_order`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millrace.topology.description import (
    GlobalStoreDescription,
    NodeDescription,
    ProcessorDescription,
    SinkDescription,
    SourceDescription,
    SubtopologyDescription,
    TopologyDescription,
)
from millrace.topology.java_order import MutableKeyTreeSet, hash_ordered
from millrace.topology.nodes import Node, ProcessorNode, SourceNode


class _Described:
    """A node with its neighbours, and its size: one more than the sizes of all nodes it sends to."""

    __slots__ = ("name", "node", "predecessors", "size", "successors")

    def __init__(self, node: Node) -> None:
        self.name = node.name
        self.node = node
        self.size = 1
        self.predecessors: MutableKeyTreeSet[_Described] = MutableKeyTreeSet(_compare)
        self.successors: MutableKeyTreeSet[_Described] = MutableKeyTreeSet(_compare)

    def grow(self, amount: int) -> None:
        """Count nodes that were found below this one, here and in everything above."""
        self.size += amount
        for predecessor in self.predecessors:
            predecessor.grow(amount)

    def described(self) -> NodeDescription:
        """Return the description, now that all neighbours are known."""
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

    Each global store has a text of its own; ids of groups that hold several stay the same for all of them.
    """
    return TopologyDescription(
        [_subtopology(group) for group in groups if not group.is_global],
        [store for group in groups if group.is_global for store in _global_stores(group)],
    )


def _subtopology(group: NodeGroup) -> SubtopologyDescription:
    parents: Mapping[str, tuple[str, ...]] = {
        node.name: () if isinstance(node, SourceNode) else node.parents for node in group.nodes
    }
    by_name = {node.name: _Described(node) for node in group.nodes}
    for name in hash_ordered(hash_ordered(by_name)):
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
    return SourceDescription(node.name, tuple(hash_ordered(node.topics, copied=True)), pattern, successors)


def _processor(node: ProcessorNode, predecessors: tuple[str, ...], successors: tuple[str, ...]) -> ProcessorDescription:
    stores = hash_ordered(hash_ordered(node.stores), copied=True)
    return ProcessorDescription(node.name, tuple(stores), predecessors, successors)


def _compare(one: _Described, other: _Described) -> int:
    if one is other:
        return 0
    if one.size != other.size:
        return other.size - one.size
    return -1 if one.name < other.name else 1
