"""The arrays a matcher consists of, and how they grow.

    slots ──▶ unit ──owner──▶ row ──first──▶ unit
    (fingerprints)            (entries) ──parent/child/older──▶ row

A *row* is an entry, or the memory of one that is absent but that others descend from (`num` 0). A *unit* is
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


class Index(NamedTuple):
    """All state of a matcher but which units are free. -1 means none.

    tokens  [16 u]: token ids; an entry's lie at 16 * first
    owner   [u]: row
    after, before  [u]: ring of the units with the same fingerprint
    slots   [s]: fingerprint table, open addressing; upper half: hash, whose low bits are the home place;
        lower half: 1 + the front unit of the ring; 0 if empty
    names   [t]: table of ids, open addressing; 1 + row, 0 if empty
    name    [r, 8]: id, 64 bytes NUL-padded, as big-endian words: they compare like the id
    context [r, 2]: identity of the context
    first, num, position, salt  [r]: first unit, tokens, position of the first token, number of the salt
    parent, child, older, newer  [r]: parent's row, newest child, siblings
    uses    [r]: rows whose parent it is
    counts  [6]
    powers  [2]: multiplier of the rolling hash, and its MIN_SPAN-th power
    """

    tokens: Int32s
    owner: Int32s
    after: Int32s
    before: Int32s
    slots: UInt64s
    names: Int32s
    name: UInt64s
    context: UInt64s
    first: Int32s
    num: Int32s
    position: Int32s
    salt: Int32s
    parent: Int32s
    child: Int32s
    older: Int32s
    newer: Int32s
    uses: Int32s
    counts: Int64s
    powers: UInt64s


UNIT_FIELDS: Final = ("owner", "after", "before")
ROW_FIELDS: Final = (
    *("name", "context", "first", "num", "position", "salt"),
    *("parent", "child", "older", "newer", "uses"),
)


def new_index(seed: int) -> Index:
    """An empty index. `seed` picks the hash function: matches do not depend on it, how keys collide does."""
    powers = np.array([seed | 1, pow(seed | 1, MIN_SPAN, 1 << 64)], np.uint64)
    counts = np.array([0, -1, 0, 0, 0, 0], np.int64)
    empty: dict[str, npt.NDArray[Any]] = {field: np.empty(0, np.int32) for field in Index._fields}
    empty["name"], empty["context"] = np.empty((0, 8), np.uint64), np.empty((0, 2), np.uint64)
    empty["slots"], empty["names"] = np.zeros(1024, np.uint64), np.zeros(256, np.int32)
    return Index(**{**empty, "counts": counts, "powers": powers})


def with_room(index: Index, num_units: int, num_rows: int) -> Index:
    """`index` with capacity for units and rows below the given numbers; arrays that have it are kept.

    Grows by half, so that adding costs a constant number of copies for each unit.
    """
    wider: dict[str, npt.NDArray[Any]] = {}
    if num_units > len(index.owner):
        capacity = max(1024, num_units, len(index.owner) * 3 // 2)
        wider["tokens"] = _longer(index.tokens, MIN_SPAN * capacity)
        wider |= {field: _longer(getattr(index, field), capacity) for field in UNIT_FIELDS}
    if num_rows > len(index.num):
        capacity = max(256, num_rows, len(index.num) * 3 // 2)
        wider |= {field: _longer(getattr(index, field), capacity) for field in ROW_FIELDS}
    return index._replace(**wider) if wider else index


def _longer(array: npt.NDArray[Any], length: int) -> npt.NDArray[Any]:
    longer = np.empty((length, *array.shape[1:]), array.dtype)
    longer[: len(array)] = array
    return longer
