"""Draws figures as SVGs that a browser and a Markdown page show: output per second over time by instance, and bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 900, 320, 60, 40, 30
_COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb")


def draw(path: Path, title: str, series: Mapping[str, Sequence[int]], marks: Sequence[tuple[float, str]]) -> None:
    """Write a stacked area chart.

    Args:
        path: of the SVG.
        title: above the chart.
        series: instance → records in each second.
        marks: (second, what happened then).
    """
    seconds = max(2, *(len(values) for values in series.values()))
    totals = [sum(values[number] for values in series.values() if number < len(values)) for number in range(seconds)]
    top = max(1, *totals)

    def x(second: float) -> float:
        return _LEFT + second * (_WIDTH - _LEFT - 10) / (seconds - 1)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - value * (_HEIGHT - _TOP - _BOTTOM) / top

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="16" font-weight="bold">{escape(title)}</text>',
    ]
    below = [0] * seconds
    for number, (name, values) in enumerate(series.items()):
        above = [under + (values[second] if second < len(values) else 0) for second, under in enumerate(below)]
        outline = [*enumerate(above), *reversed(list(enumerate(below)))]
        points = " ".join(f"{x(second):.1f},{y(value):.1f}" for second, value in outline)
        colour = _COLOURS[number % len(_COLOURS)]
        parts.append(f'<polygon points="{points}" fill="{colour}"/>')
        parts.append(
            f'<text x="{_WIDTH - 10 - 60 * (len(series) - number)}" y="16" fill="{colour}">{escape(name)}</text>'
        )
        below = above
    parts += [
        f'<text x="{_LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:,}</text>'
        for value in (0, top // 2, top)
    ]
    parts += [
        f'<text x="{x(second):.1f}" y="{_HEIGHT - 10}" text-anchor="middle">{second} s</text>'
        for second in range(0, seconds, max(1, seconds // 10))
    ]
    for second, text in marks:
        at = f"{x(second):.1f}"
        parts.append(
            f'<line x1="{at}" x2="{at}" y1="{_TOP - 10}" y2="{_HEIGHT - _BOTTOM}" stroke="black" stroke-dasharray="4"/>'
        )
        parts.append(f'<text x="{at}" y="{_TOP - 12}">{escape(text)}</text>')
    path.write_text("\n".join([*parts, "</svg>"]) + "\n")


_PANEL_WIDTH, _PANEL_HEIGHT, _BAR_TOP = 220, 190, 50


def draw_bars(path: Path, rows: Mapping[str, Mapping[str, Sequence[tuple[str, float]]]]) -> None:
    """Write bar charts, a panel for each series; those of a row have one scale.

    Args:
        path: of the SVG.
        rows: what is measured → series → (name, value) of each bar.
    """
    columns = max(len(series) for series in rows.values())
    width, height = columns * _PANEL_WIDTH + 20, len(rows) * _PANEL_HEIGHT + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for row, (what, series) in enumerate(rows.items()):
        top = max(value for bars in series.values() for _, value in bars)
        ground = (row + 1) * _PANEL_HEIGHT - 25
        for column, (name, bars) in enumerate(series.items()):
            left = 10 + column * _PANEL_WIDTH
            title = f"{what}, by {name.replace('_', ' ')}"
            parts.append(
                f'<text x="{left}" y="{ground - _PANEL_HEIGHT + 40}" font-weight="bold">{escape(title)}</text>'
            )
            step = (_PANEL_WIDTH - 20) / len(bars)
            for number, (label, value) in enumerate(bars):
                x, size = left + number * step, value * (_PANEL_HEIGHT - 25 - _BAR_TOP) / top
                middle, text = f"{x + step / 2:.1f}", f"{value:,.{0 if top >= 100 else 1}f}"
                bar = f'width="{step - 6:.1f}" height="{size:.1f}" fill="{_COLOURS[row]}"'
                parts.append(f'<rect x="{x + 3:.1f}" y="{ground - size:.1f}" {bar}/>')
                parts.append(f'<text x="{middle}" y="{ground - size - 4:.1f}" text-anchor="middle">{text}</text>')
                parts.append(f'<text x="{middle}" y="{ground + 14}" text-anchor="middle">{escape(label)}</text>')
    path.write_text("\n".join([*parts, "</svg>"]) + "\n")
