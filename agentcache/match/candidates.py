"""What may be matched at a prompt position. Machine code; `reference.py` says the same in plain words."""

from __future__ import annotations

import numpy as np

from agentcache.match.index import (
    AFTER,
    BEFORE,
    OWNER,
    PARENT,
    PLACES,
    Index,
    Int32s,
)
from agentcache.match.jit import compiled
from agentcache.match.names import name_less
from agentcache.match.prompt import (
    AHEAD,
    COUNT,
    EXACT,
    OFFSET,
    ROW,
    STANDS,
    START,
    STOP,
    Prompt,
    after_parent,
    ahead,
    behind,
    same_context,
    whole_context,
)
from agentcache.match.rules import MAX_ANCESTORS, MAX_HOLE, MIN_SPAN, RECENT_SPANS, TRIES
from agentcache.match.slots import (
    find_place,
    finish,
    front_unit,
    rolling,
    segment_of,
    slot_at,
    window_offset,
)

_HALF = np.uint64(32)


@compiled
def continues(index: Index, prompt: Prompt, row: int, start: int, offset: int) -> bool:
    """An ancestor of the entry, or an earlier part of itself, stands shortly before `start`."""
    count = prompt.state[COUNT]
    for span in range(max(0, count - RECENT_SPANS), count):
        if start - prompt.spans[span, STOP] >= MAX_HOLE:
            continue
        length = prompt.spans[span, STOP] - prompt.spans[span, START]
        if prompt.spans[span, ROW] == row and prompt.spans[span, OFFSET] + length <= offset:
            return True
        ancestor = index.rows[row, PARENT]
        for _ in range(MAX_ANCESTORS):
            if ancestor < 0:
                break
            if ancestor == prompt.spans[span, ROW]:
                return True
            ancestor = index.rows[ancestor, PARENT]
    return False


@compiled
def next_hit(index: Index, prompt: Prompt, here: int) -> int:
    """First position from `here` on whose MIN_SPAN tokens are a visible fingerprint, -1 if there is none."""
    tokens = prompt.tokens
    last = len(tokens) - MIN_SPAN
    if here > last:
        return -1
    # passing the index costs a thousand bytes: here, where it counts, it is taken apart
    slots, hashes, fetched, salts = index.slots, prompt.hashes, prompt.fetched, prompt.salts
    segments = index.segments
    power, power_16 = index.powers[0], index.powers[1]
    h = rolling(tokens, here, power)
    width = 32  # small behind a span, where the next one is likely near
    while here <= last:
        count = min(width, last - here + 1)
        for i in range(count):
            for k in range(len(salts)):
                finished = finish(h, salts[k])
                hashes[k, i] = finished
                segment = segment_of(finished)
                fetched[k, i] = slots[slot_at(segment, np.int64(finished) & (segments[segment, PLACES] - 1))]
            if here + i < last:
                h = h * power + np.uint64(tokens[here + i + MIN_SPAN])
                h -= np.uint64(tokens[here + i]) * power_16
        for i in range(count):
            for k in range(len(salts)):
                value = fetched[k, i]
                if value == 0:
                    continue
                h_i = hashes[k, i]
                segment = segment_of(h_i)
                mask = segments[segment, PLACES] - 1
                place = np.int64(h_i)
                while value != 0:
                    if value >> _HALF == h_i:
                        if find_place(index, h_i, salts[k], tokens, here + i) >= 0:
                            return here + i
                        break
                    place += 1
                    value = slots[slot_at(segment, place & mask)]
        here += count
        width = min(2 * width, AHEAD)
    return -1


@compiled
def gather(index: Index, prompt: Prompt, here: int, floor: int) -> int:
    """Fill `prompt.hits` with the candidates of the window at `here`, not yet extended to the right.

    Returns how many; -1 if a digest is wanted first.
    """
    num = 0
    h = rolling(prompt.tokens, here, index.powers[0])
    for rank in range(len(prompt.salts)):
        salt = prompt.salts[rank]
        finished = finish(h, salt)
        place = find_place(index, finished, salt, prompt.tokens, here)
        if place < 0:
            continue
        front = front_unit(index, slot_at(segment_of(finished), place))
        size, unit = 1, index.units[front, AFTER]
        while unit != front and size <= 2 * TRIES:
            size, unit = size + 1, index.units[unit, AFTER]
        unit = front
        for tried in range(min(size, 2 * TRIES)):
            if tried == TRIES and size > 2 * TRIES:  # too many: the rest from the back
                for _ in range(TRIES):
                    front = index.units[front, BEFORE]
                unit = front
            num = _add_hit(index, prompt, num, unit, here, floor, rank)
            if num < 0:
                return -1
            unit = index.units[unit, AFTER]
    return num


@compiled
def _add_hit(index: Index, prompt: Prompt, num: int, unit: int, here: int, floor: int, rank: int) -> int:
    row = int(index.units[unit, OWNER])
    offset = window_offset(index, unit)
    back = behind(index, prompt, row, offset, here, floor)
    start, stands = here - back, 0
    if back == offset:
        if after_parent(index, prompt, prompt.state[COUNT], row, start):
            stands = 1
        else:
            stands = whole_context(index, prompt, row, start)
            if stands < 0:
                return -1
    hit = prompt.hits[num]
    hit[START], hit[STOP], hit[ROW], hit[OFFSET] = start, here, row, offset - back
    hit[STANDS], hit[EXACT] = stands, rank
    return num + 1


@compiled
def best_hit(index: Index, prompt: Prompt, num: int, here: int) -> int:
    """Extend the hits that count to the right and choose one. `num` is at least 1."""
    standing = False
    for i in range(num):
        standing = standing or prompt.hits[i, STANDS] == 1
    longest = 0
    for i in range(num):
        hit = prompt.hits[i]
        if standing == (hit[STANDS] == 1):  # none but those that stand are compared, lest it cost without use
            hit[STOP] = here + ahead(index, prompt, int(hit[ROW]), hit[OFFSET] + here - hit[START], here)
            longest = max(longest, hit[STOP] - hit[START])
    best, best_kind = -1, 0
    for i in range(num):
        hit = prompt.hits[i]
        if standing != (hit[STANDS] == 1) or (not standing and hit[STOP] - hit[START] <= longest - MIN_SPAN):
            continue
        kind = 0 if standing else _kind(index, prompt, hit[ROW], hit[START], hit[OFFSET])
        if best < 0 or kind < best_kind or (kind == best_kind and _better(index, hit, prompt.hits[best])):
            best, best_kind = i, kind
    return best


@compiled
def _kind(index: Index, prompt: Prompt, row: int, start: int, offset: int) -> int:
    """Which of the candidates whose context does not stand come first: 0, then 1, then 2."""
    if same_context(index, prompt, row, 0):
        return 1
    return 0 if continues(index, prompt, row, start, offset) else 2


@compiled
def _better(index: Index, a: Int32s, b: Int32s) -> bool:
    """Hit `a` comes before hit `b` of the same kind: longer, preferred salt, lower id, lower offset."""
    longer = (a[STOP] - a[START]) - (b[STOP] - b[START])
    if longer != 0:
        return bool(longer > 0)
    if a[EXACT] != b[EXACT]:
        return bool(a[EXACT] < b[EXACT])
    if a[ROW] != b[ROW]:
        return name_less(index, a[ROW], b[ROW])
    return bool(a[OFFSET] < b[OFFSET])
