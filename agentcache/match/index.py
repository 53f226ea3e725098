"""The arrays a matcher consists of, and how they grow.

    slots ──▶ unit ──OWNER──▶ row ──FIRST──▶ unit
    (fingerprints)            (entries) ──PARENT/CHILD/OLDER──▶ row

A *row* is an entry, or the memory of one that is absent but that others descend from (NUM is 0). A *unit* is
MIN_SPAN tokens of an entry and the fingerprint that belongs to them. A *slot* of the fingerprint table names
one unit of all those with the same MIN_SPAN tokens and salt, which form a ring.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from agentcache.match.rules import MIN_SPAN

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]

TOP, FREE, NUM_ROWS, NUM_SLOTS, NUM_FINGERPRINTS, NUM_ENTRIES = range(6)
"""Indices into `Index.counts`: rows ever used, first free row or -1, rows, slots, fingerprints and entries
in use."""

MAX_LOAD: Final = 0.7
"""Share of a hash table's places in use, beyond which it doubles."""


OWNER, AFTER, BEFORE = range(3)
"""Columns of `Index.units`: row; neighbours in the ring of units with the same fingerprint."""

FIRST, NUM, POSITION, SALT, PARENT, CHILD, OLDER, NEWER, USES, CONTEXT = range(10)
"""Columns of `Index.rows`: first unit, number of tokens, position of the first one, number of the salt, the
rows of the parent, the newest child and the siblings, how many rows have it as parent, and four words of the
context's identity."""

ROW_WIDTH: Final = 16
"""A row is one cache line."""


class Index(NamedTuple):
    """All state of a matcher but which units are free. -1 means none.

    tokens  [16 u]: token ids; an entry's lie at 16 * FIRST
    units   [u, 3]
    slots   [s]: fingerprint table, open addressing; upper half: hash, whose low bits are the home place;
        lower half: 1 + the front unit of the ring; 0 if empty
    rows    [r, ROW_WIDTH]
    names   [r, 8]: id, 64 bytes NUL-padded, as big-endian words: they compare like the id
    places  [t]: table of ids, open addressing; 1 + row, 0 if empty
    counts  [6]
    powers  [2]: multiplier of the rolling hash, and its MIN_SPAN-th power
    """

    tokens: Int32s
    units: Int32s
    slots: UInt64s
    rows: Int32s
    names: UInt64s
    places: Int32s
    counts: Int64s
    powers: UInt64s


def new_index(seed: int) -> Index:
    """An empty index. `seed` picks the hash function: matches do not depend on it, how keys collide does."""
    return Index(
        tokens=np.empty(0, np.int32),
        units=np.empty((0, 3), np.int32),
        slots=np.zeros(1024, np.uint64),
        rows=np.empty((0, ROW_WIDTH), np.int32),
        names=np.empty((0, 8), np.uint64),
        places=np.zeros(256, np.int32),
        counts=np.array([0, -1, 0, 0, 0, 0], np.int64),
        powers=np.array([seed | 1, pow(seed | 1, MIN_SPAN, 1 << 64)], np.uint64),
    )


def with_room(index: Index, num_units: int, num_rows: int) -> Index:
    """`index` with capacity for units and rows below the given numbers; arrays that have it are kept.

    Grows by half, so that adding costs a constant number of copies for each unit.
    """
    if num_units > len(index.units):
        capacity = max(1024, num_units, len(index.units) * 3 // 2)
        tokens = _longer(index.tokens, MIN_SPAN * capacity)
        index = index._replace(tokens=tokens, units=_longer(index.units, capacity))
    if num_rows > len(index.rows):
        capacity = max(256, num_rows, len(index.rows) * 3 // 2)
        index = index._replace(rows=_longer(index.rows, capacity), names=_longer(index.names, capacity))
    return index


def _longer(array: npt.NDArray[Any], length: int) -> npt.NDArray[Any]:
    longer = np.empty((length, *array.shape[1:]), array.dtype)
    longer[: len(array)] = array
    return longer
