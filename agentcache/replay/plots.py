"""Plots as SVG text, for the report's page: lines, stacked columns, bars. Colours are CSS classes of the page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

_WIDTH, _HEIGHT = 860, 240
_LEFT, _TOP, _BOTTOM = 44, 10, 26


class Series(NamedTuple):
    """One line or layer. css: class that colours it; values: one for each position on the x axis"""

    name: str
    css: str
    values: Sequence[float]


def lines(series: Sequence[Series], x_label: str) -> str:
    """Shares, 0 to 1, over requests."""
    count = max((len(one.values) for one in series), default=0)
    parts = [_frame(count, x_label)]
    for one in series:
        points = " ".join(f"{_x(i, count):.1f},{_y(value):.1f}" for i, value in enumerate(one.values))
        parts.append(
            f'<polyline class="line {one.css}" points="{points}"><title>{escape(one.name)}</title></polyline>'
        )
    return _svg(parts, _HEIGHT)


def stacked(series: Sequence[Series], x_label: str) -> str:
    """Layers of shares that add up to 1 at most, one column a position, lowest layer first."""
    count = max((len(one.values) for one in series), default=0)
    parts = [_frame(count, x_label)]
    width = max(0.6, (_WIDTH - _LEFT) / max(1, count))
    below = [0.0] * count
    for one in series:
        rects = []
        for i, value in enumerate(one.values):
            top, bottom = _y(below[i] + value), _y(below[i])
            if bottom - top > 0.05:
                x = _LEFT + i * (_WIDTH - _LEFT) / count
                rects.append(f"M{x:.1f} {bottom:.1f}h{width:.2f}V{top:.1f}h-{width:.2f}z")
            below[i] += value
        parts.append(
            f'<path class="fill {one.css}" d="{"".join(rects)}"><title>{escape(one.name)}</title></path>'
        )
    return _svg(parts, _HEIGHT)


class Bar(NamedTuple):
    """A row: its name, its whole length, parts of it drawn one below the other, and what is written behind."""

    name: str
    whole: float
    parts: Sequence[tuple[str, str, float]]
    note: str


def bars(rows: Sequence[Bar], name_width: int = 150) -> str:
    """Horizontal bars to one scale. A part is (its name, CSS class, length)."""
    largest = max((row.whole for row in rows), default=0) or 1
    room = _WIDTH - name_width - 190
    out: list[str] = []
    y = 4.0
    for row in rows:
        height = max(18.0, 9.0 * len(row.parts) + 4)
        out.append(
            f'<text x="{name_width - 8}" y="{y + height / 2 + 4:.1f}" text-anchor="end">{escape(row.name)}</text>'
        )
        length = room * row.whole / largest
        out.append(
            f'<rect class="whole" x="{name_width}" y="{y:.1f}" width="{length:.1f}" height="{height:.1f}"/>'
        )
        step = (height - 4) / max(1, len(row.parts))
        for number, (name, css, value) in enumerate(row.parts):
            out.append(
                f'<rect class="fill {css}" x="{name_width}" y="{y + 2 + number * step:.1f}" '
                f'width="{room * value / largest:.1f}" height="{step - 1:.1f}"><title>{escape(name)}</title></rect>'
            )
        at = f'x="{name_width + length + 6:.1f}" y="{y + height / 2 + 4:.1f}"'
        out.append(f'<text class="note" {at}>{escape(row.note)}</text>')
        y += height + 6
    return _svg(out, int(y) + 2)


def _frame(count: int, x_label: str) -> str:
    """Grid lines, and what the axes say."""
    out = []
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = _y(share)
        out.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        out.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{share:.0%}</text>')
    for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        x, number = _LEFT + share * (_WIDTH - _LEFT), round(share * max(0, count - 1))
        label = f"{number} {x_label}" if share == 0.5 else str(number)
        out.append(f'<text x="{x:.1f}" y="{_HEIGHT - 8}" text-anchor="{anchor}">{escape(label)}</text>')
    return "".join(out)


def _x(position: int, count: int) -> float:
    return _LEFT + (_WIDTH - _LEFT) * (position / (count - 1) if count > 1 else 0.5)


def _y(share: float) -> float:
    return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - min(1.0, max(0.0, share)))


def _svg(parts: Sequence[str], height: int) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'
