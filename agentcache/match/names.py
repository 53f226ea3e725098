"""Entry ids to rows: a hash table over the ids in the index. Machine code; see `Index` for the arrays."""

from __future__ import annotations

import numpy as np

from agentcache.match.index import (
    CHILD,
    FREE,
    NUM,
    NUM_ROWS,
    OLDER,
    PARENT,
    TOP,
    USES,
    Index,
    UInt64s,
)
from agentcache.match.jit import compiled

_ODD = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


@compiled
def hash_name(name: UInt64s) -> int:
    """Hash of an id's eight words, below 2**32."""
    h = np.uint64(0)
    for word in name:
        h = (h ^ word) * _ODD
        h ^= h >> _HALF
    return int(h >> _HALF)


@compiled
def same_name(a: UInt64s, b: UInt64s) -> bool:
    for i in range(8):  # noqa: SIM110 (a generator does not compile)
        if a[i] != b[i]:
            return False
    return True


@compiled
def name_less(index: Index, a: int, b: int) -> bool:
    """Row `a`'s id comes before row `b`'s."""
    for i in range(8):
        if index.names[a, i] != index.names[b, i]:
            return bool(index.names[a, i] < index.names[b, i])
    return False


@compiled
def find_row(index: Index, name: UInt64s) -> int:
    """Row of an id, -1 if there is none."""
    mask = len(index.places) - 1
    h = hash_name(name)
    place = h & mask
    while index.places[place] != 0:
        if np.int64(index.places[place] >> _HALF) == h:
            row = int(index.places[place] & _LOW) - 1
            if same_name(index.names[row], name):
                return row
        place = (place + 1) & mask
    return -1


@compiled
def put_place(index: Index, value: np.uint64) -> None:
    """Enter the hash and row of an id that is not in the table; there must be room."""
    mask = len(index.places) - 1
    place = np.int64(value >> _HALF) & mask
    while index.places[place] != 0:
        place = (place + 1) & mask
    index.places[place] = value


@compiled
def drop_name(index: Index, row: int) -> None:
    """Take a row out of the table; those behind it move up, so that no tombstone is left."""
    mask = len(index.places) - 1
    hole = hash_name(index.names[row]) & mask
    while int(index.places[hole] & _LOW) != row + 1:
        hole = (hole + 1) & mask
    place = hole
    while True:
        place = (place + 1) & mask
        if index.places[place] == 0:
            break
        home = np.int64(index.places[place] >> _HALF) & mask
        if (place - home) & mask >= (place - hole) & mask:
            index.places[hole] = index.places[place]
            hole = place
    index.places[hole] = 0


@compiled
def put_all_places(index: Index, old: UInt64s) -> None:
    """Fill an empty table with what `old` holds."""
    for value in old:
        if value != 0:
            put_place(index, value)


@compiled
def intern(index: Index, name: UInt64s) -> int:
    """Row of an id; a new one, of an absent entry, if there is none. There must be room for it."""
    row = find_row(index, name)
    if row >= 0:
        return row
    row = int(index.counts[FREE])
    if row >= 0:
        index.counts[FREE] = index.rows[row, OLDER]
    else:
        row = int(index.counts[TOP])
        index.counts[TOP] += 1
    index.counts[NUM_ROWS] += 1
    index.names[row] = name
    index.rows[row, NUM] = 0
    index.rows[row, USES] = 0
    index.rows[row, PARENT] = -1
    index.rows[row, CHILD] = -1
    put_place(index, np.uint64(hash_name(name)) << _HALF | np.uint64(row + 1))
    return row


@compiled
def release(index: Index, row: int) -> None:
    """Free a row if it is absent and nothing descends from it; then its parent's, and so on."""
    while row >= 0 and index.rows[row, NUM] == 0 and index.rows[row, USES] == 0:
        drop_name(index, row)
        parent = int(index.rows[row, PARENT])
        index.rows[row, OLDER] = index.counts[FREE]
        index.counts[FREE] = row
        index.counts[NUM_ROWS] -= 1
        if parent >= 0:
            index.rows[parent, USES] -= 1
        row = parent
