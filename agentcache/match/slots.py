"""The fingerprint table: what has these MIN_SPAN tokens under this salt. Machine code; see `Index`.

A key is the tokens and the salt themselves, not their hash: a slot is believed after they were compared.
So two keys never share a ring, and what a match finds does not depend on the hash.

The table is SEGMENTS small ones, chosen by the hash's upper bits, each probed linearly from the place that
its lower bits name, each doubled on its own when full: no insert waits for all to be moved. Their memory is
interleaved,

    slots:  | segment 0, places 0-63 | segment 1, places 0-63 | ... | segment 0, places 64-127 | ...

so that doubling one leaves it where it is, and memory is added at the end only.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from agentcache.match.index import (
    AFTER,
    BEFORE,
    FIRST,
    NUM,
    NUM_FINGERPRINTS,
    OWNER,
    PLACES,
    SALT,
    SEGMENTS,
    STRIDE,
    USED,
    Index,
    Int32s,
)
from agentcache.match.jit import compiled
from agentcache.match.rules import MIN_SPAN

_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_MIX_A = np.uint64(0xD6E8FEB86659FD93)
_MIX_B = np.uint64(0x9E3779B97F4A7C15)
_TO_SEGMENT: Final = np.uint64(26)
assert 1 << 32 - int(_TO_SEGMENT) == SEGMENTS


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
def segment_of(h: np.uint64) -> int:
    return int(h >> _TO_SEGMENT)


@compiled
def slot_at(segment: int, place: int) -> int:
    """Where in `slots` a place of a segment lies."""
    return (place >> 6) << 12 | segment << 6 | (place & 63)


@compiled
def window_offset(index: Index, unit: int) -> int:
    """Where in its entry the fingerprinted window of a unit begins."""
    row = index.units[unit, OWNER]
    last = index.rows[row, NUM] - MIN_SPAN
    return int(min(index.rows[row, STRIDE] * (unit - index.rows[row, FIRST]), last))


@compiled
def window_start(index: Index, unit: int) -> int:
    """Where in `index.tokens` the fingerprinted window of a unit begins."""
    return int(MIN_SPAN * index.rows[index.units[unit, OWNER], FIRST]) + window_offset(index, unit)


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
def find_place(index: Index, h: np.uint64, salt: int, tokens: Int32s, start: int) -> int:
    """Place of a window of hash `h` in its segment; -1 - the place where it belongs if it has none."""
    segment = segment_of(h)
    mask = index.segments[segment, PLACES] - 1
    place = int(h) & mask
    while True:
        slot = slot_at(segment, place)
        value = index.slots[slot]
        if value == 0:
            return int(-1 - place)
        if value >> _HALF == h:
            unit = front_unit(index, slot)
            if index.rows[index.units[unit, OWNER], SALT] == salt and same_window(index, unit, tokens, start):
                return int(place)
        place = (place + 1) & mask


@compiled
def put_unit(index: Index, unit: int, at_back: bool) -> bool:
    """Enter a unit's fingerprint, at the front or the back of its ring.

    False, and nothing done, if `index.slots` must be longer first.
    """
    start = window_start(index, unit)
    salt = index.rows[index.units[unit, OWNER], SALT]
    h = finish(rolling(index.tokens, start, index.powers[0]), salt)
    segment = segment_of(h)
    place = find_place(index, h, salt, index.tokens, start)
    if place < 0:
        places = index.segments[segment, PLACES]
        if 10 * (index.segments[segment, USED] + 1) > 7 * places:
            if len(index.slots) < 2 * SEGMENTS * places:
                return False
            _double(index, segment)
            place = find_place(index, h, salt, index.tokens, start)
        index.slots[slot_at(segment, -1 - place)] = h << _HALF | np.uint64(unit + 1)
        index.units[unit, AFTER] = unit
        index.units[unit, BEFORE] = unit
        index.segments[segment, USED] += 1
    else:
        slot = slot_at(segment, place)
        front = front_unit(index, slot)
        back = index.units[front, BEFORE]
        index.units[back, AFTER] = unit
        index.units[unit, BEFORE] = back
        index.units[unit, AFTER] = front
        index.units[front, BEFORE] = unit
        if not at_back:
            index.slots[slot] = h << _HALF | np.uint64(unit + 1)
    index.counts[NUM_FINGERPRINTS] += 1
    return True


@compiled
def drop_unit(index: Index, unit: int) -> None:
    """Take a unit's fingerprint out; slots behind an emptied one move up, so that no tombstone is left."""
    start = window_start(index, unit)
    salt = index.rows[index.units[unit, OWNER], SALT]
    h = finish(rolling(index.tokens, start, index.powers[0]), salt)
    segment = segment_of(h)
    hole = find_place(index, h, salt, index.tokens, start)
    index.counts[NUM_FINGERPRINTS] -= 1
    after, before = index.units[unit, AFTER], index.units[unit, BEFORE]
    if after != unit:
        index.units[before, AFTER] = after
        index.units[after, BEFORE] = before
        if front_unit(index, slot_at(segment, hole)) == unit:
            index.slots[slot_at(segment, hole)] = h << _HALF | np.uint64(after + 1)
        return
    index.segments[segment, USED] -= 1
    mask = index.segments[segment, PLACES] - 1
    place = hole
    while True:
        place = (place + 1) & mask
        value = index.slots[slot_at(segment, place)]
        if value == 0:
            break
        home = np.int64(value >> _HALF) & mask
        if (place - home) & mask >= (place - hole) & mask:
            index.slots[slot_at(segment, hole)] = value
            hole = place
    index.slots[slot_at(segment, hole)] = 0


@compiled
def _double(index: Index, segment: int) -> None:
    """Twice the places for a segment. Those added were never written: they are empty."""
    places = index.segments[segment, PLACES]
    old = np.empty(places, np.uint64)
    for place in range(places):
        old[place] = index.slots[slot_at(segment, place)]
        index.slots[slot_at(segment, place)] = 0
    index.segments[segment, PLACES] = 2 * places
    mask = 2 * places - 1
    for value in old:
        if value != 0:
            place = np.int64(value >> _HALF) & mask
            while index.slots[slot_at(segment, place)] != 0:
                place = (place + 1) & mask
            index.slots[slot_at(segment, place)] = value
