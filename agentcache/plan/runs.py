"""Recomputed positions as runs: what becomes one virtual request each."""

from __future__ import annotations

import sys
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from agentcache.plan.types import Positions

Runs: TypeAlias = npt.NDArray[np.int32]
"""Half-open intervals of prompt positions, ascending, not touching, int32 [r, 2]."""


def runs(positions: Positions) -> Runs:
    """Ascending positions without repeats as the fewest half-open intervals."""
    if not len(positions):
        return np.empty((0, 2), np.int32)
    breaks = np.flatnonzero(np.diff(positions) != 1) + 1
    starts = positions[np.concatenate([[0], breaks])]
    stops = positions[np.concatenate([breaks - 1, [len(positions) - 1]])] + 1
    return np.stack([starts, stops], axis=1).astype(np.int32)


def split(intervals: Runs, max_tokens: int, max_rows: int = sys.maxsize) -> list[Runs]:
    """`intervals` in ascending pieces of at most `max_tokens` tokens and `max_rows` rows; a long interval is cut.

    Every piece but the last is full: a piece is one forward pass, and the fewest are the fastest.
    """
    if max_tokens < 1 or max_rows < 1:
        raise ValueError("a piece holds at least one token")
    pieces: list[Runs] = []
    piece: list[tuple[int, int]] = []
    room = max_tokens
    for first, stop in intervals.tolist():
        while first < stop:
            taken = min(stop - first, room)
            piece.append((first, first + taken))
            first, room = first + taken, room - taken
            if room == 0 or len(piece) == max_rows:
                pieces.append(np.array(piece, np.int32))
                piece, room = [], max_tokens
    if piece:
        pieces.append(np.array(piece, np.int32))
    return pieces


def take(intervals: Runs, max_tokens: int, max_rows: int = sys.maxsize) -> tuple[Runs, Runs]:
    """The first piece of `split`, and the rest; an interval may be cut in two."""
    first, *others = split(intervals, max_tokens, max_rows) or [intervals]
    if not others:
        return first, intervals[:0]
    last = int(first[-1, 1])
    rest = intervals[intervals[:, 1] > last].copy()
    rest[0, 0] = max(rest[0, 0], last)
    return first, rest
