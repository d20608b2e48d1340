"""Draws flame graphs as SVGs without scripts, so that a Markdown page shows them as they are.

A bar is a function, as wide as the share of samples in which it was on the stack; what it called is above it. Callers are at
the bottom. A pointer over a bar of the opened file shows its whole name and share.
"""

from __future__ import annotations

from collections import Counter
from html import escape
from pathlib import Path

Stacks = Counter[tuple[str, ...]]
"""Stacks, outermost function first, and how often each was seen."""

_WIDTH, _ROW, _TOP, _LETTER = 1200, 17, 52, 6.5
_SMALLEST = 0.003
"""The share of samples below which a function is not drawn."""
_KINDS = (
    ("Millrace", "#f4a582", ("millrace/", "benchmarks/")),
    ("RocksDB", "#b8d97a", ("rocksdb", "rocksdict")),
    ("Kafka client", "#92c5de", ("rd_kafka", "rdk:", "confluent_kafka", "cimpl", "kafka/", "lz4", "LZ4", "crc32c")),
    ("Python and system", "#dddddd", ("",)),
)
"""What a function belongs to, its colour, and what its name contains."""


def draw(path: Path, title: str, stacks: Stacks) -> None:
    """Write the graph of some stacks."""
    total = sum(stacks.values())
    bars: list[tuple[int, int, int, str]] = []  # depth, first sample, samples, name
    _collect(bars, sorted(stacks.items()), 0, 0, total * _SMALLEST)
    rows = 1 + max(depth for depth, *_ in bars)
    height = _TOP + rows * _ROW + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="monospace" font-size="10">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="10" y="18" font-size="14" font-weight="bold">{escape(title)}</text>',
    ]
    for number, (kind, colour, _) in enumerate(_KINDS):
        x = 10 + 170 * number
        parts.append(f'<rect x="{x}" y="28" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{x + 18}" y="38" font-size="12">{kind}</text>')
    scale = (_WIDTH - 20) / total
    for depth, first, samples, name in bars:
        x, y, width = 10 + first * scale, height - 10 - (depth + 1) * _ROW, samples * scale
        colour = next(colour for _, colour, marks in _KINDS if any(mark in name for mark in marks))
        letters, text = int((width - 4) / _LETTER), name.replace(".<locals>", "").replace("(millrace/", "(")
        shown = text if len(text) <= letters else text[: letters - 1] + "…" if letters > 3 else ""
        parts.append(
            f"<g><title>{escape(name)}: {samples / total:.1%}</title>"
            f'<rect x="{x:.1f}" y="{y}" width="{max(width - 0.5, 0.5):.1f}" height="{_ROW - 1}" fill="{colour}"/>'
            f'<text x="{x + 2:.1f}" y="{y + 12}">{escape(shown)}</text></g>'
        )
    path.write_text("\n".join([*parts, "</svg>"]) + "\n")


def _collect(
    bars: list[tuple[int, int, int, str]],
    stacks: list[tuple[tuple[str, ...], int]],
    depth: int,
    first: int,
    least: float,
) -> None:
    """Add the bars of some stacks that have the same callers, from a depth on."""
    groups: dict[str, list[tuple[tuple[str, ...], int]]] = {}
    for frames, count in stacks:
        if len(frames) > depth:
            groups.setdefault(frames[depth], []).append((frames, count))
    for name, group in groups.items():
        samples = sum(count for _, count in group)
        if samples >= least:
            bars.append((depth, first, samples, name))
            _collect(bars, group, depth + 1, first, least)
        first += samples
