"""Entries into the index and out of it. Machine code; see `Index`."""

from __future__ import annotations

from agentcache.match.index import (
    CHILD,
    CONTEXT,
    FIRST,
    NEWER,
    NUM,
    NUM_ENTRIES,
    OLDER,
    OWNER,
    PARENT,
    POSITION,
    SALT,
    STRIDE,
    USES,
    Index,
    Int32s,
    UInt64s,
)
from agentcache.match.jit import compiled
from agentcache.match.names import intern, release
from agentcache.match.rules import MIN_SPAN
from agentcache.match.slots import drop_unit, put_unit


@compiled
def units_of(num: int, stride: int) -> int:
    """How many units an entry takes: they hold its tokens, and each has one of its fingerprints."""
    return int(max((num + MIN_SPAN - 1) // MIN_SPAN, (num - MIN_SPAN + stride - 1) // stride + 1))


@compiled
def put_entry(
    index: Index,
    name: UInt64s,
    parent_name: UInt64s,
    context: Int32s,
    first: int,
    num: int,
    position: int,
    salt: int,
    alone: bool,
    stride: int,
) -> int:
    """Enter an absent entry whose tokens are in the arena already. `parent_name` is empty or eight words.

    stride: tokens from one fingerprint to the next
    Returns what `put_units` does.
    """
    row = intern(index, name)
    former = int(index.rows[row, PARENT])
    index.rows[row, CONTEXT : CONTEXT + 4] = context
    index.rows[row, FIRST] = first
    index.rows[row, NUM] = num
    index.rows[row, POSITION] = position
    index.rows[row, SALT] = salt
    index.rows[row, PARENT] = -1
    index.rows[row, STRIDE] = stride
    index.counts[NUM_ENTRIES] += 1
    if len(parent_name) > 0:
        parent = intern(index, parent_name)
        index.rows[row, PARENT] = parent
        index.rows[parent, USES] += 1
        index.rows[row, NEWER] = -1
        index.rows[row, OLDER] = index.rows[parent, CHILD]
        if index.rows[parent, CHILD] >= 0:
            index.rows[index.rows[parent, CHILD], NEWER] = row
        index.rows[parent, CHILD] = row
    if former >= 0:
        index.rows[former, USES] -= 1
        release(index, former)
    num_units = units_of(num, stride)
    for unit in range(first, first + num_units):
        index.units[unit, OWNER] = row
    if num < MIN_SPAN:
        return -1
    return put_units(index, row, first + num_units - 1, alone)


@compiled
def put_units(index: Index, row: int, last: int, alone: bool) -> int:
    """Enter the fingerprints of a row's units from `last` down: of equal ones the first is then the newest.

    Returns -1; or, if `index.slots` must be longer first, the unit to go on with.
    """
    for unit in range(last, index.rows[row, FIRST] - 1, -1):
        if not put_unit(index, unit, alone):
            return unit
    return -1


@compiled
def drop_entry(index: Index, row: int) -> None:
    """Take a present entry out. Its row remains while others descend from it."""
    num = index.rows[row, NUM]
    if num >= MIN_SPAN:
        first = index.rows[row, FIRST]
        for unit in range(first, first + units_of(num, index.rows[row, STRIDE])):
            drop_unit(index, unit)
    parent = index.rows[row, PARENT]
    if parent >= 0:
        older, newer = index.rows[row, OLDER], index.rows[row, NEWER]
        if newer >= 0:
            index.rows[newer, OLDER] = older
        else:
            index.rows[parent, CHILD] = older
        if older >= 0:
            index.rows[older, NEWER] = newer
    index.rows[row, NUM] = 0
    index.counts[NUM_ENTRIES] -= 1
    release(index, row)
