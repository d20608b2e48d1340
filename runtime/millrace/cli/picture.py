"""A topology as graphs to be drawn, one for each sub-topology, and their form in Mermaid.

Topics and stores are drawn as nodes of their own. A repartition topic appears twice, below the sub-topology that writes it
and above the one that reads it, so that each graph can be read alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from millrace.topology import BuiltTopology, ProcessorNode, SinkNode, SourceNode, Subtopology


class Shape(StrEnum):
    """What a box in a picture stands for."""

    TOPIC = "topic"
    SOURCE = "source"
    PROCESSOR = "processor"
    STORE = "store"
    SINK = "sink"


@dataclass(frozen=True, slots=True)
class Box:
    """One box; `key` is unique in its picture."""

    key: str
    label: str
    shape: Shape


@dataclass(frozen=True, slots=True)
class Picture:
    """The graph of one sub-topology. Edges go from box to box, by key; those to and from stores have no direction."""

    title: str
    boxes: tuple[Box, ...]
    edges: tuple[tuple[str, str], ...]


_MERMAID_BRACKETS = {
    Shape.TOPIC: ('[["', '"]]'),
    Shape.SOURCE: ('(["', '"])'),
    Shape.PROCESSOR: ('["', '"]'),
    Shape.STORE: ('[("', '")]'),
    Shape.SINK: ('(["', '"])'),
}


def pictures(topology: BuiltTopology) -> tuple[Picture, ...]:
    """Return the picture of every sub-topology, the global one last."""
    named = [(f"Sub-topology {item.id}", item) for item in topology.subtopologies]
    if topology.global_subtopology:
        named.append(("Global stores", topology.global_subtopology))
    return tuple(_picture(title, item, topology.application_id) for title, item in named)


def mermaid(graphs: Sequence[Picture]) -> str:
    """Return pictures as one Mermaid flowchart."""
    lines = ["flowchart TD"]
    for number, graph in enumerate(graphs):
        ids = {box.key: f"s{number}n{index}" for index, box in enumerate(graph.boxes)}
        shapes = {box.key: box.shape for box in graph.boxes}
        lines.append(f'  subgraph s{number}["{_escaped(graph.title)}"]')
        for box in graph.boxes:
            opening, closing = _MERMAID_BRACKETS[box.shape]
            lines.append(f"    {ids[box.key]}{opening}{_escaped(box.label)}{closing}")
        for start, end in graph.edges:
            arrow = "-.-" if Shape.STORE in {shapes[start], shapes[end]} else "-->"
            lines.append(f"    {ids[start]} {arrow} {ids[end]}")
        lines.append("  end")
    return "\n".join(lines) + "\n"


def _picture(title: str, subtopology: Subtopology, application_id: str) -> Picture:
    boxes: dict[str, Box] = {}
    edges: dict[tuple[str, str], None] = {}
    for start, end in _edges(subtopology, application_id):
        for box in (start, end):
            boxes.setdefault(box.key, box)
        edges[start.key, end.key] = None
    return Picture(title, tuple(boxes.values()), tuple(edges))


def _edges(subtopology: Subtopology, application_id: str) -> Iterator[tuple[Box, Box]]:
    boxes: dict[str, Box] = {}
    for node in subtopology.nodes:
        match node:
            case SourceNode():
                boxes[node.name] = box = Box(node.name, node.name, Shape.SOURCE)
                names = [_full_name(name, subtopology.source_topics, application_id) for name in node.topics]
                names += [node.pattern.pattern] if node.pattern else []
                for name in names:
                    yield Box(f"in {name}", name, Shape.TOPIC), box
            case ProcessorNode():
                boxes[node.name] = box = Box(node.name, node.name, Shape.PROCESSOR)
                yield from ((boxes[parent], box) for parent in node.parents)
                for store in node.stores:
                    yield box, Box(f"store {store}", store, Shape.STORE)
            case SinkNode():
                boxes[node.name] = box = Box(node.name, node.name, Shape.SINK)
                yield from ((boxes[parent], box) for parent in node.parents)
                name = "chosen per record"
                if node.topic:
                    name = _full_name(node.topic, subtopology.sink_topics, application_id)
                yield box, Box(f"out {name}", name, Shape.TOPIC)


def _full_name(name: str, known: Sequence[str], application_id: str) -> str:
    """Return a topic under the name it has in Kafka: internal ones carry the application id in front."""
    internal = f"{application_id}-{name}"
    return internal if internal in known else name


def _escaped(text: str) -> str:
    return text.replace("#", "#35;").replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;")
