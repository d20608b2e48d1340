"""Diagrams as Mermaid or SVG: of a topology, with one graph per sub-topology, and of the stages of its backfill.

Topics and stores are drawn as separate nodes. In a topology a repartition topic appears twice, below the sub-topology that writes
it and above the one that reads it, so that each graph can be read alone. In a backfill it is a shuffle between two stages.

In SVG a box is one layer below the lowest of its parents, and each layer is ordered by where the parents are, which for graphs
of this size leaves few crossings. No library is needed to draw it or to show it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from html import escape

from millrace.topology.description import NodeGroup
from millrace.topology.physical_topology import BuiltTopology, Node, ProcessorNode, SinkNode, SourceNode


class Shape(StrEnum):
    """What a box in a diagram stands for."""

    TOPIC = "topic"
    SOURCE = "source"
    PROCESSOR = "processor"
    STORE = "store"
    SINK = "sink"
    STAGE = "stage"
    SHUFFLE = "shuffle"


@dataclass(frozen=True, slots=True)
class Box:
    """One box; `key` is unique in its graph."""

    key: str
    label: str
    shape: Shape


@dataclass(frozen=True, slots=True)
class Graph:
    """One graph, such as a sub-topology; boxes come after their parents.

    Edges go from box to box, by key; edges to and from stores have no direction.
    """

    title: str
    boxes: tuple[Box, ...]
    edges: tuple[tuple[str, str], ...]


_MERMAID_BRACKETS = {
    Shape.TOPIC: ('[["', '"]]'),
    Shape.SOURCE: ('(["', '"])'),
    Shape.PROCESSOR: ('["', '"]'),
    Shape.STORE: ('[("', '")]'),
    Shape.SINK: ('(["', '"])'),
    Shape.STAGE: ('["', '"]'),
    Shape.SHUFFLE: ('{{"', '"}}'),
}


def graphs_of(topology: BuiltTopology) -> tuple[Graph, ...]:
    """Return the graph of every sub-topology, the global one last."""
    groups = [NodeGroup(item.id, item.nodes, is_global=False) for item in topology.subtopologies]
    if topology.global_subtopology:
        groups.append(NodeGroup(topology.global_subtopology.id, topology.global_subtopology.nodes, is_global=True))
    return graphs_of_groups(groups)


def graphs_of_groups(groups: Sequence[NodeGroup]) -> tuple[Graph, ...]:
    """Return the same of a topology that is not built for an application, whose internal topics have no application id."""
    return tuple(
        _graph("Global stores" if group.is_global else f"Sub-topology {group.id}", group.nodes)
        for group in sorted(groups, key=lambda group: group.is_global)
    )


def _graph(title: str, nodes: Sequence[Node]) -> Graph:
    boxes: dict[str, Box] = {}
    edges: dict[tuple[str, str], None] = {}
    for start, end in _edges(nodes):
        for box in (start, end):
            boxes.setdefault(box.key, box)
        edges[start.key, end.key] = None
    return Graph(title, tuple(boxes.values()), tuple(edges))


def mermaid(graphs: Sequence[Graph]) -> str:
    """Return graphs as one Mermaid flowchart."""
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


def _edges(nodes: Sequence[Node]) -> Iterator[tuple[Box, Box]]:
    boxes: dict[str, Box] = {}
    for node in nodes:
        match node:
            case SourceNode():
                boxes[node.name] = box = Box(node.name, node.name, Shape.SOURCE)
                for name in (*node.topics, *([node.pattern.pattern] if node.pattern else [])):
                    yield Box(f"in {name}", name, Shape.TOPIC), box
            case ProcessorNode():
                boxes[node.name] = box = Box(node.name, node.name, Shape.PROCESSOR)
                yield from ((boxes[parent], box) for parent in node.parents)
                for store in node.stores:
                    yield box, Box(f"store {store}", store, Shape.STORE)
            case SinkNode():
                boxes[node.name] = box = Box(node.name, node.name, Shape.SINK)
                yield from ((boxes[parent], box) for parent in node.parents)
                name = node.topic or "chosen per record"
                yield box, Box(f"out {name}", name, Shape.TOPIC)


def _escaped(text: str) -> str:
    return text.replace("#", "#35;").replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;")


_BOX_HEIGHT = 34
_GAP_X, _GAP_Y = 26, 44
_PADDING, _TITLE_HEIGHT = 22, 26
_CHARACTER_WIDTH = 7.3

_STYLE = """
  .millrace text { font: 12px ui-monospace, monospace; fill: #1f2933; text-anchor: middle; dominant-baseline: central }
  .millrace .title { font-weight: bold; text-anchor: start }
  .millrace .frame { fill: #f7f9fb; stroke: #b8c4ce }
  .millrace .box { fill: #fff; stroke: #52606d }
  .millrace .topic { fill: #e3f8e9; stroke: #2f855a }
  .millrace .store { fill: #e6f0ff; stroke: #2b6cb0 }
  .millrace .stage { font-weight: bold }
  .millrace .shuffle { fill: #f3e8ff; stroke: #6b46c1 }
  .millrace .source, .millrace .sink { fill: #fff8e1; stroke: #b7791f }
  .millrace .edge { fill: none; stroke: #52606d }
  .millrace .head { fill: #52606d }
  .millrace .dashed { stroke-dasharray: 4 3 }
"""
"""Only for what is inside, since a notebook may show several pictures in one page."""


@dataclass(frozen=True, slots=True)
class _Placed:
    box: Box
    x: float
    y: float
    width: float

    @property
    def centre(self) -> float:
        return self.x + self.width / 2


def svg(graphs: Sequence[Graph]) -> str:
    """Return graphs as one SVG document."""
    parts: list[str] = []
    top, total_width = float(_PADDING), 0.0
    for graph in graphs:
        placed = _place(graph, top + _TITLE_HEIGHT)
        width = max((item.x + item.width for item in placed.values()), default=200.0) + _PADDING
        bottom = max((item.y for item in placed.values()), default=top) + _BOX_HEIGHT + _PADDING
        parts.append(
            f'<rect class="frame" x="{_PADDING}" y="{top}" width="{width:.0f}" height="{bottom - top:.0f}" rx="8"/>'
        )
        parts.append(
            f'<text class="title" x="{2 * _PADDING}" y="{top + _TITLE_HEIGHT / 2 + 4}">{escape(graph.title)}</text>'
        )
        parts += [_edge(placed[start], placed[end]) for start, end in graph.edges if start in placed and end in placed]
        parts += [_box(item) for item in placed.values()]
        top, total_width = bottom + _PADDING, max(total_width, width + 2 * _PADDING)
    size = f'width="{total_width:.0f}" height="{top:.0f}" viewBox="0 0 {total_width:.0f} {top:.0f}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="millrace" {size}>',
            f"<style>{_STYLE}</style>",
            *parts,
            "</svg>",
            "",
        ]
    )


def _place(graph: Graph, top: float) -> Mapping[str, _Placed]:
    parents: dict[str, list[str]] = {box.key: [] for box in graph.boxes}
    for start, end in graph.edges:
        parents[end].append(start)
    layers: dict[str, int] = {}
    for box in graph.boxes:  # parents come first, except for what leads back in a loop, which pushes nothing down
        above = [layers[parent] for parent in parents[box.key] if parent in layers]
        layers[box.key] = 1 + max(above, default=-1)
    placed: dict[str, _Placed] = {}

    def centre_of_parents(box: Box) -> float:
        centres = [placed[parent].centre for parent in parents[box.key] if parent in placed]
        return sum(centres) / len(centres) if centres else 0.0

    for layer in range(max(layers.values(), default=-1) + 1):
        boxes = [box for box in graph.boxes if layers[box.key] == layer]
        boxes.sort(key=centre_of_parents)
        x = 2.0 * _PADDING
        for box in boxes:
            width = len(box.label) * _CHARACTER_WIDTH + 24
            x = max(x, centre_of_parents(box) - width / 2)
            placed[box.key] = _Placed(box, x, top + 12 + layer * (_BOX_HEIGHT + _GAP_Y), width)
            x += width + _GAP_X
    return placed


def _box(item: _Placed) -> str:
    round_corners = {Shape.SOURCE: 17, Shape.SINK: 17, Shape.STORE: 10}.get(item.box.shape, 3)
    rectangle = (
        f'<rect class="box {item.box.shape}" x="{item.x:.1f}" y="{item.y:.1f}" width="{item.width:.1f}" '
        f'height="{_BOX_HEIGHT}" rx="{round_corners}"/>'
    )
    label = f'<text x="{item.centre:.1f}" y="{item.y + _BOX_HEIGHT / 2:.1f}">{escape(item.box.label)}</text>'
    return rectangle + label


def _edge(start: _Placed, end: _Placed) -> str:
    y1, y2 = start.y + _BOX_HEIGHT, end.y
    middle = (y1 + y2) / 2
    path = f"M{start.centre:.1f} {y1:.1f}C{start.centre:.1f} {middle:.1f} {end.centre:.1f} {middle:.1f} {end.centre:.1f} {y2:.1f}"
    if Shape.STORE in {start.box.shape, end.box.shape}:
        return f'<path class="edge dashed" d="{path}"/>'
    # A separate triangle and no marker: markers have ids, which clash if a page shows several pictures.
    back = -8 if middle <= y2 else 8
    head = f"M{end.centre:.1f} {y2:.1f}l-4 {back}h8z"
    return f'<path class="edge" d="{path}"/><path class="head" d="{head}"/>'
