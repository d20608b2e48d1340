"""Pictures of a topology as SVG: layers from top to bottom, sub-topologies one under the other.

A box is one layer below the lowest of its parents, and each layer is ordered by where the parents are, which for graphs of
this size leaves few crossings. No library is needed, and the result needs none to be shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from millrace.cli.picture import Box, Picture, Shape

_BOX_HEIGHT = 34
_GAP_X, _GAP_Y = 26, 44
_PADDING, _TITLE_HEIGHT = 22, 26
_CHARACTER_WIDTH = 7.3

_STYLE = """
  text { font: 12px ui-monospace, monospace; fill: #1f2933; text-anchor: middle; dominant-baseline: central }
  .title { font-weight: bold; text-anchor: start }
  .frame { fill: #f7f9fb; stroke: #b8c4ce }
  .box { fill: #fff; stroke: #52606d }
  .topic { fill: #e3f8e9; stroke: #2f855a }
  .store { fill: #e6f0ff; stroke: #2b6cb0 }
  .source, .sink { fill: #fff8e1; stroke: #b7791f }
  .edge { fill: none; stroke: #52606d }
  .dashed { stroke-dasharray: 4 3 }
"""


@dataclass(frozen=True, slots=True)
class _Placed:
    box: Box
    x: float
    y: float
    width: float

    @property
    def centre(self) -> float:
        return self.x + self.width / 2


def svg(graphs: Sequence[Picture]) -> str:
    """Return pictures as one SVG document."""
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
    arrow = (
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#52606d"/></marker></defs>'
    )
    return "\n".join(
        [f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', f"<style>{_STYLE}</style>", arrow, *parts, "</svg>", ""]
    )


def _place(graph: Picture, top: float) -> Mapping[str, _Placed]:
    parents: dict[str, list[str]] = {box.key: [] for box in graph.boxes}
    for start, end in graph.edges:
        parents[end].append(start)
    layers: dict[str, int] = {}
    for box in graph.boxes:
        _layer(box.key, parents, layers)
    placed: dict[str, _Placed] = {}
    for layer in range(max(layers.values(), default=-1) + 1):
        boxes = [box for box in graph.boxes if layers[box.key] == layer]
        boxes.sort(key=lambda box: _mean([placed[parent].centre for parent in parents[box.key] if parent in placed]))
        x = 2.0 * _PADDING
        for box in boxes:
            width = len(box.label) * _CHARACTER_WIDTH + 24
            wanted = _mean([placed[parent].centre for parent in parents[box.key] if parent in placed]) - width / 2
            x = max(x, wanted)
            placed[box.key] = _Placed(box, x, top + 12 + layer * (_BOX_HEIGHT + _GAP_Y), width)
            x += width + _GAP_X
    return placed


def _layer(key: str, parents: Mapping[str, Sequence[str]], layers: dict[str, int]) -> int:
    if key not in layers:
        layers[key] = 1 + max((_layer(parent, parents, layers) for parent in parents[key]), default=-1)
    return layers[key]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


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
    return f'<path class="edge" marker-end="url(#arrow)" d="{path}"/>'
