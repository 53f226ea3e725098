"""The arrays a matcher consists of.

    slots ──▶ unit ──OWNER──▶ row ──FIRST──▶ unit
    (fingerprints)            (entries) ──PARENT/CHILD/OLDER──▶ row

A *row* is an entry, or the memory of one that is absent but that others descend from (NUM is 0). A *unit* is
one of an entry's fingerprints, and room for MIN_SPAN of its tokens; with a fingerprint every MIN_SPAN tokens
there is as much room as needed, with more of them some stays empty. A *slot* of the fingerprint table names one
unit of all those with the same MIN_SPAN tokens and salt, which form a ring.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from agentcache.match.memory import Growing
from agentcache.match.rules import MIN_SPAN

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]

TOP, FREE, NUM_ROWS, NUM_FINGERPRINTS, NUM_ENTRIES = range(5)
"""Indices into `Index.counts`: rows ever used, first free row or -1; rows, fingerprints, entries in use."""

SEGMENTS: Final = 64
"""Parts of the fingerprint table that grow on their own (see `slots.py`)."""

PLACES, USED = range(2)
"""Columns of `Index.segments`: slots of the segment, a power of two; how many are in use."""

OWNER, AFTER, BEFORE = range(3)
"""Columns of `Index.units`: row; neighbours in the ring of units with the same fingerprint."""

FIRST, NUM, POSITION, SALT, PARENT, CHILD, OLDER, NEWER, USES, STRIDE, CONTEXT = range(11)
"""Columns of `Index.rows`: first unit, number of tokens, position of the first one, number of the salt, the
rows of the parent, the newest child and the siblings, how many rows have it as parent, tokens from one
fingerprint to the next, and four words of the context's identity."""

ROW_WIDTH: Final = 16
"""A row is one cache line."""


class Index(NamedTuple):
    """All state of a matcher but which units are free. -1 means none.

    tokens  [16 u]: token ids; an entry's lie at 16 * FIRST
    units   [u, 3]
    slots   [s]: fingerprint table; upper half: hash, lower half: 1 + the front unit of the ring; 0 if empty
    segments [SEGMENTS, 2]
    rows    [r, ROW_WIDTH]
    names   [r, 8]: id, 64 bytes NUL-padded, as big-endian words: they compare like the id
    places  [t]: table of ids, open addressing; upper half: hash, lower half: 1 + row; 0 if empty
    counts  [5]
    powers  [2]: multiplier of the rolling hash, and its MIN_SPAN-th power
    """

    tokens: Int32s
    units: Int32s
    slots: UInt64s
    segments: Int64s
    rows: Int32s
    names: UInt64s
    places: UInt64s
    counts: Int64s
    powers: UInt64s


class Storage:
    """The memory behind an index. An `Index` is a snapshot of where it lies: outdated after `reserve`."""

    def __init__(self, seed: int) -> None:
        """`seed` picks the hash function: matches do not depend on it, how keys collide does."""
        self._tokens = Growing(np.int32)
        self._units = Growing(np.int32, 3)
        self._rows = Growing(np.int32, ROW_WIDTH)
        self._names = Growing(np.uint64, 8)
        self._slots = Growing(np.uint64)
        self._slots.reserve(64 * SEGMENTS, exactly=True)
        self._segments = np.array([[64, 0]] * SEGMENTS, np.int64)
        self.places = np.zeros(256, np.uint64)
        self.counts = np.array([0, -1, 0, 0, 0], np.int64)
        self._powers = np.array([seed | 1, pow(seed | 1, MIN_SPAN, 1 << 64)], np.uint64)

    def has(self, num_units: int, num_rows: int) -> bool:
        """There is memory for units and rows below these numbers."""
        tokens, units = MIN_SPAN * num_units <= len(self._tokens), num_units <= len(self._units)
        return tokens and units and num_rows <= min(len(self._rows), len(self._names))

    def reserve(self, num_units: int, num_rows: int) -> None:
        """Have memory for units and rows below these numbers. Drop snapshots before: each costs a copy."""
        self._tokens.reserve(MIN_SPAN * num_units)
        self._units.reserve(num_units)
        self._rows.reserve(num_rows)
        self._names.reserve(num_rows)

    def double_slots(self) -> None:
        """Have memory for twice the slots. Drop snapshots before."""
        self._slots.reserve(2 * len(self._slots), exactly=True)

    def snapshot(self) -> Index:
        return Index(
            tokens=self._tokens.array,
            units=self._units.array,
            slots=self._slots.array,
            segments=self._segments,
            rows=self._rows.array,
            names=self._names.array,
            places=self.places,
            counts=self.counts,
            powers=self._powers,
        )
