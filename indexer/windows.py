"""Cuts where nothing in the source says where to cut: very long functions, and text without sections.

The place of a cut is chosen by the content of the lines around it, not by counting from the top: an edit
moves the cuts next to it and leaves the others, and the blocks between them, as they were.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from zlib import crc32


@dataclass(frozen=True, slots=True)
class Bounds:
    """Sizes of windows. A line longer than `max_bytes` is a window of its own: cuts are at line starts."""

    min_lines: int
    max_lines: int
    max_bytes: int


BLOCK_BOUNDS = Bounds(min_lines=200, max_lines=1000, max_bytes=64 * 1024)
"""No block is larger than this."""

TEXT_BOUNDS = Bounds(min_lines=40, max_lines=200, max_bytes=16 * 1024)
"""Windows of text that has no structure of its own."""


def fits(starts: Sequence[int], size: int, first: int, end: int, bounds: Bounds) -> bool:
    """Whether rows [first, end) of a file of `size` bytes, whose rows start at `starts`, are one window."""
    return end - first <= bounds.max_lines and _offset(starts, size, end) - starts[first] <= bounds.max_bytes


def cut(
    data: bytes,
    starts: Sequence[int],
    first: int,
    end: int,
    levels: Iterable[Sequence[int]],
    bounds: Bounds,
) -> list[int]:
    """Rows in (first, end), ascending, at which to cut rows [first, end) so that each part fits `bounds`.

    `levels` are ascending rows that are good to cut at, best level first; behind them come rows of text below a
    blank one, then rows of text, then any row.
    """
    ranked = list(levels)
    cuts = []
    at = first
    while end - at > 1 and not fits(starts, len(data), at, end, bounds):
        at = _next_cut(data, starts, at, end, ranked, bounds)
        cuts.append(at)
    return cuts


def _next_cut(
    data: bytes,
    starts: Sequence[int],
    at: int,
    end: int,
    levels: Sequence[Sequence[int]],
    bounds: Bounds,
) -> int:
    by_bytes = bisect_right(starts, starts[at] + bounds.max_bytes, lo=at, hi=end) - 1
    limit = min(end - 1, max(at + 1, min(by_bytes, at + bounds.max_lines)))
    # Lines may be so long that few fit: then a window has few lines, too.
    least = at + max(1, min(bounds.min_lines, (limit - at) // 4))

    def line(row: int) -> bytes:
        return data[starts[row] : starts[row + 1] if row + 1 < len(starts) else len(data)]

    def choose(rows: Iterable[int]) -> int | None:
        """The row whose line has the least checksum: the same one, wherever the window starts."""
        return min(rows, key=lambda row: (crc32(line(row)), row), default=None)

    for rows in levels:
        chosen = choose(rows[bisect_left(rows, least) : bisect_right(rows, limit)])
        if chosen is not None:
            return chosen
    text = [row for row in range(least, limit + 1) if line(row).strip()]
    chosen = choose(row for row in text if not line(row - 1).strip())
    if chosen is None:
        chosen = choose(text)
    return limit if chosen is None else chosen


def _offset(starts: Sequence[int], size: int, row: int) -> int:
    return starts[row] if row < len(starts) else size
