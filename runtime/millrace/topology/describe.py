"""The text of a topology, equal to the byte to what Kafka Streams prints for the same one.

People keep these texts beside their applications and diff them on every upgrade, and tools draw them. Nodes are ordered by
the number of paths below them; the orders inside brackets and arrows are those of Java's collections (see `java_order`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from millrace.topology.java_order import MutableKeyTreeSet, hash_ordered
from millrace.topology.nodes import Node, ProcessorNode, SinkNode, SourceNode


class _Described:
    """A node with its neighbours, and its size: one more than the sizes of all nodes it sends to."""

    __slots__ = ("head", "is_sink", "is_source", "name", "predecessors", "size", "successors")

    def __init__(self, node: Node) -> None:
        self.name = node.name
        self.size = 1
        self.head = _head(node)
        self.is_source = isinstance(node, SourceNode)
        self.is_sink = isinstance(node, SinkNode)
        self.predecessors: MutableKeyTreeSet[_Described] = MutableKeyTreeSet(_compare)
        self.successors: MutableKeyTreeSet[_Described] = MutableKeyTreeSet(_compare)

    def grow(self, amount: int) -> None:
        """Count nodes that were found below this one, here and in everything above."""
        self.size += amount
        for predecessor in self.predecessors:
            predecessor.grow(amount)

    def __str__(self) -> str:
        lines = [self.head]
        if not self.is_sink:
            lines.append(f"      --> {_names(self.successors)}")
        if not self.is_source:
            lines.append(f"      <-- {_names(self.predecessors)}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """The nodes of one sub-topology, in the order they were added."""

    id: int
    nodes: Sequence[Node]
    is_global: bool


def describe(groups: Sequence[NodeGroup]) -> str:
    """Return the description of all sub-topologies, in the order of their ids.

    Each global store has a text of its own; ids of groups that hold several stay the same for all of them.
    """
    tasks = [(group.id, _subtopology(group)) for group in groups if not group.is_global]
    stores = [pair for group in groups if group.is_global for pair in _global_stores(group)]
    text = "Topologies:\n "
    expected = 0
    while tasks and stores:
        text += "  " + (tasks.pop(0) if tasks[0][0] == expected else stores.pop(0))[1]
        expected += 1
    return text + "".join("  " + body for _, body in (*tasks, *stores))


def _subtopology(group: NodeGroup) -> str:
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
    body = "".join(f"    {node}\n" for node in ordered)
    return f"Sub-topology: {group.id}\n{body}\n"


def _global_stores(group: NodeGroup) -> list[tuple[int, str]]:
    result = []
    processors = [node for node in group.nodes if isinstance(node, ProcessorNode)]
    for source in group.nodes:
        if not isinstance(source, SourceNode):
            continue
        processor = next(node for node in processors if source.name in node.parents)
        text = f"Sub-topology: {group.id} for global store (will not generate tasks)\n"
        text += f"    {_head(source)}\n      --> {processor.name}\n"
        text += f"    {_head(processor)}\n      --> none\n      <-- {source.name}\n"
        result.append((group.id, text))
    return result


def _head(node: Node) -> str:
    if isinstance(node, SourceNode):
        topics = (
            node.pattern.pattern if node.pattern is not None else _bracketed(hash_ordered(node.topics, copied=True))
        )
        return f"Source: {node.name} (topics: {topics})"
    if isinstance(node, ProcessorNode):
        stores = hash_ordered(hash_ordered(node.stores), copied=True)
        return f"Processor: {node.name} (stores: {_bracketed(stores)})"
    if node.topic is not None:
        return f"Sink: {node.name} (topic: {node.topic})"
    return f"Sink: {node.name} (extractor class: {_callable_name(node.topic_extractor)})"


def _bracketed(names: Sequence[str]) -> str:
    return f"[{', '.join(names)}]"


def _callable_name(function: Any) -> str:
    name: str = getattr(function, "__name__", type(function).__name__)
    return name


def _names(nodes: MutableKeyTreeSet[_Described]) -> str:
    return ", ".join(node.name for node in nodes) or "none"


def _compare(one: _Described, other: _Described) -> int:
    if one is other:
        return 0
    if one.size != other.size:
        return other.size - one.size
    return -1 if one.name < other.name else 1
