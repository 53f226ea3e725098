"""The fingerprint table: what has these MIN_SPAN tokens under this salt. Machine code; see `Index`.

A key is the tokens and the salt themselves, not their hash: a slot is believed after they were compared.
So two keys never share a ring, and what a match finds does not depend on the hash.
"""

from __future__ import annotations

import numpy as np

from agentcache.match.index import (
    AFTER,
    BEFORE,
    CHILD,
    CONTEXT,
    FIRST,
    NEWER,
    NUM,
    NUM_ENTRIES,
    NUM_FINGERPRINTS,
    NUM_SLOTS,
    OLDER,
    OWNER,
    PARENT,
    POSITION,
    SALT,
    USES,
    Index,
    Int32s,
    UInt64s,
)
from agentcache.match.jit import compiled
from agentcache.match.names import intern, release
from agentcache.match.rules import MIN_SPAN

_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_MIX_A = np.uint64(0xD6E8FEB86659FD93)
_MIX_B = np.uint64(0x9E3779B97F4A7C15)


@compiled
def rolling(tokens: Int32s, start: int, power: np.uint64) -> np.uint64:
    """Polynomial in `power` whose coefficients are the window's tokens, modulo 2**64."""
    h = np.uint64(0)
    for i in range(start, start + MIN_SPAN):
        h = h * power + np.uint64(tokens[i])
    return h


@compiled
def finish(h: np.uint64, salt: int) -> np.uint64:
    """Hash of a window under a salt, below 2**32."""
    h ^= np.uint64(salt + 1) * _MIX_B
    h ^= h >> _HALF
    h *= _MIX_A
    h ^= h >> _HALF
    h *= _MIX_A
    return h >> _HALF


@compiled
def window_start(index: Index, unit: int) -> int:
    """Where in `index.tokens` the fingerprinted window of a unit begins."""
    row = index.units[unit, OWNER]
    last = index.rows[row, NUM] - MIN_SPAN
    return int(MIN_SPAN * index.rows[row, FIRST] + min(MIN_SPAN * (unit - index.rows[row, FIRST]), last))


@compiled
def same_window(index: Index, unit: int, tokens: Int32s, start: int) -> bool:
    """The unit's window equals `tokens` from `start` on."""
    own = window_start(index, unit)
    for i in range(MIN_SPAN):  # noqa: SIM110 (a generator does not compile)
        if index.tokens[own + i] != tokens[start + i]:
            return False
    return True


@compiled
def front_unit(index: Index, slot: int) -> int:
    """The unit a slot in use names."""
    return int(np.int64(index.slots[slot] & _LOW) - 1)


@compiled
def find_slot(index: Index, h: np.uint64, salt: int, tokens: Int32s, start: int) -> int:
    """Slot of a window, its hash being `h`; if there is none, -1 - the slot where it belongs."""
    mask = len(index.slots) - 1
    slot = int(h) & mask
    while index.slots[slot] != 0:
        if index.slots[slot] >> _HALF == h:
            unit = front_unit(index, slot)
            if index.rows[index.units[unit, OWNER], SALT] == salt and same_window(index, unit, tokens, start):
                return slot
        slot = (slot + 1) & mask
    return -1 - slot


@compiled
def put_unit(index: Index, unit: int, at_back: bool) -> None:
    """Enter a unit's fingerprint, at the front or the back of its ring; there must be room for a slot."""
    start = window_start(index, unit)
    salt = index.rows[index.units[unit, OWNER], SALT]
    h = finish(rolling(index.tokens, start, index.powers[0]), salt)
    slot = find_slot(index, h, salt, index.tokens, start)
    index.counts[NUM_FINGERPRINTS] += 1
    if slot < 0:
        index.slots[-1 - slot] = h << _HALF | np.uint64(unit + 1)
        index.units[unit, AFTER] = unit
        index.units[unit, BEFORE] = unit
        index.counts[NUM_SLOTS] += 1
        return
    front = front_unit(index, slot)
    back = index.units[front, BEFORE]
    index.units[back, AFTER] = unit
    index.units[unit, BEFORE] = back
    index.units[unit, AFTER] = front
    index.units[front, BEFORE] = unit
    if not at_back:
        index.slots[slot] = h << _HALF | np.uint64(unit + 1)


@compiled
def drop_unit(index: Index, unit: int) -> None:
    """Take a unit's fingerprint out; slots behind an emptied one move up, so that no tombstone is left."""
    start = window_start(index, unit)
    salt = index.rows[index.units[unit, OWNER], SALT]
    h = finish(rolling(index.tokens, start, index.powers[0]), salt)
    hole = find_slot(index, h, salt, index.tokens, start)
    index.counts[NUM_FINGERPRINTS] -= 1
    after, before = index.units[unit, AFTER], index.units[unit, BEFORE]
    if after != unit:
        index.units[before, AFTER] = after
        index.units[after, BEFORE] = before
        if front_unit(index, hole) == unit:
            index.slots[hole] = h << _HALF | np.uint64(after + 1)
        return
    index.counts[NUM_SLOTS] -= 1
    mask = len(index.slots) - 1
    slot = hole
    while True:
        slot = (slot + 1) & mask
        if index.slots[slot] == 0:
            break
        home = np.int64(index.slots[slot] >> _HALF) & mask
        if (slot - home) & mask >= (slot - hole) & mask:
            index.slots[hole] = index.slots[slot]
            hole = slot
    index.slots[hole] = 0


@compiled
def put_all_slots(index: Index, old: UInt64s) -> None:
    """Fill an empty table with the slots of `old`."""
    mask = len(index.slots) - 1
    for value in old:
        if value != 0:
            slot = np.int64(value >> _HALF) & mask
            while index.slots[slot] != 0:
                slot = (slot + 1) & mask
            index.slots[slot] = value


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
) -> None:
    """Enter an absent entry whose tokens are in the arena already. `parent_name` is empty or eight words."""
    row = intern(index, name)
    former = index.rows[row, PARENT]
    index.rows[row, CONTEXT : CONTEXT + 4] = context
    index.rows[row, FIRST] = first
    index.rows[row, NUM] = num
    index.rows[row, POSITION] = position
    index.rows[row, SALT] = salt
    index.rows[row, PARENT] = -1
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
    num_units = (num + MIN_SPAN - 1) // MIN_SPAN
    for unit in range(
        first + num_units - 1, first - 1, -1
    ):  # the first is the newest of an entry's equal ones
        index.units[unit, OWNER] = row
        if num >= MIN_SPAN:
            put_unit(index, unit, alone)


@compiled
def drop_entry(index: Index, row: int) -> None:
    """Take a present entry out. Its row remains while others descend from it."""
    num = index.rows[row, NUM]
    if num >= MIN_SPAN:
        for unit in range(index.rows[row, FIRST], index.rows[row, FIRST] + (num + MIN_SPAN - 1) // MIN_SPAN):
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
