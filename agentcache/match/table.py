"""The fingerprint table: what has these MIN_SPAN tokens under this salt. Machine code; see `Index`.

A key is the tokens and the salt themselves, not their hash: a slot is believed after they were compared.
So two keys never share a ring, and what a match finds does not depend on the hash.
"""

from __future__ import annotations

import numpy as np

from agentcache.match.index import (
    NUM_ENTRIES,
    NUM_FINGERPRINTS,
    NUM_SLOTS,
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
    row = index.owner[unit]
    last = index.num[row] - MIN_SPAN
    return int(MIN_SPAN * index.first[row] + min(MIN_SPAN * (unit - index.first[row]), last))


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
            if index.salt[index.owner[unit]] == salt and same_window(index, unit, tokens, start):
                return slot
        slot = (slot + 1) & mask
    return -1 - slot


@compiled
def put_unit(index: Index, unit: int, at_back: bool) -> None:
    """Enter a unit's fingerprint, at the front or the back of its ring; there must be room for a slot."""
    start = window_start(index, unit)
    salt = index.salt[index.owner[unit]]
    h = finish(rolling(index.tokens, start, index.powers[0]), salt)
    slot = find_slot(index, h, salt, index.tokens, start)
    index.counts[NUM_FINGERPRINTS] += 1
    if slot < 0:
        index.slots[-1 - slot] = h << _HALF | np.uint64(unit + 1)
        index.after[unit] = unit
        index.before[unit] = unit
        index.counts[NUM_SLOTS] += 1
        return
    front = front_unit(index, slot)
    back = index.before[front]
    index.after[back] = unit
    index.before[unit] = back
    index.after[unit] = front
    index.before[front] = unit
    if not at_back:
        index.slots[slot] = h << _HALF | np.uint64(unit + 1)


@compiled
def drop_unit(index: Index, unit: int) -> None:
    """Take a unit's fingerprint out; slots behind an emptied one move up, so that no tombstone is left."""
    start = window_start(index, unit)
    salt = index.salt[index.owner[unit]]
    h = finish(rolling(index.tokens, start, index.powers[0]), salt)
    hole = find_slot(index, h, salt, index.tokens, start)
    index.counts[NUM_FINGERPRINTS] -= 1
    after, before = index.after[unit], index.before[unit]
    if after != unit:
        index.after[before] = after
        index.before[after] = before
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
    context: UInt64s,
    first: int,
    num: int,
    position: int,
    salt: int,
    alone: bool,
) -> None:
    """Enter an absent entry whose tokens are in the arena already. `parent_name` is empty or eight words."""
    row = intern(index, name)
    former = index.parent[row]
    index.context[row] = context
    index.first[row] = first
    index.num[row] = num
    index.position[row] = position
    index.salt[row] = salt
    index.parent[row] = -1
    index.counts[NUM_ENTRIES] += 1
    if len(parent_name) > 0:
        parent = intern(index, parent_name)
        index.parent[row] = parent
        index.uses[parent] += 1
        index.newer[row] = -1
        index.older[row] = index.child[parent]
        if index.child[parent] >= 0:
            index.newer[index.child[parent]] = row
        index.child[parent] = row
    if former >= 0:
        index.uses[former] -= 1
        release(index, former)
    num_units = (num + MIN_SPAN - 1) // MIN_SPAN
    for unit in range(
        first + num_units - 1, first - 1, -1
    ):  # the first is the newest of an entry's equal ones
        index.owner[unit] = row
        if num >= MIN_SPAN:
            put_unit(index, unit, alone)


@compiled
def drop_entry(index: Index, row: int) -> None:
    """Take a present entry out. Its row remains while others descend from it."""
    num = index.num[row]
    if num >= MIN_SPAN:
        for unit in range(index.first[row], index.first[row] + (num + MIN_SPAN - 1) // MIN_SPAN):
            drop_unit(index, unit)
    parent = index.parent[row]
    if parent >= 0:
        older, newer = index.older[row], index.newer[row]
        if newer >= 0:
            index.older[newer] = older
        else:
            index.child[parent] = older
        if older >= 0:
            index.newer[older] = newer
    index.num[row] = 0
    index.counts[NUM_ENTRIES] -= 1
    release(index, row)
