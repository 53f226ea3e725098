"""What may be matched at a prompt position. Machine code; `reference.py` says the same in plain words."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from agentcache.match.index import (
    AFTER,
    BEFORE,
    CONTEXT,
    FIRST,
    NUM,
    OWNER,
    PARENT,
    POSITION,
    Index,
    Int32s,
    Int64s,
    UInt64s,
)
from agentcache.match.jit import compiled
from agentcache.match.names import name_less
from agentcache.match.rules import MAX_ANCESTORS, MAX_HOLE, MIN_SPAN, RECENT_SPANS, TRIES
from agentcache.match.table import find_slot, finish, front_unit, rolling

_HALF = np.uint64(32)

START, STOP, ROW, OFFSET, STANDS, EXACT = range(6)
"""Columns of `Prompt.spans`."""

COUNT, COMPARED, NEEDED, HERE = range(4)
"""Indices into `Prompt.state`: spans so far, tokens compared, position whose digest is asked for, where the
walk stands."""

AHEAD: Final = 512
"""Most positions looked up at once. Their slots are fetched before any is looked at: the fetches overlap."""


class Prompt(NamedTuple):
    """One prompt on its way through the matcher.

    tokens  [n]
    salts   [k]: numbers of the salts it may see, the preferred first
    spans   [n + 1, 6]: those found so far
    state   [4]
    digest_at  [n + 1]: index into `digests` of what stands before that position, -1 if not computed yet
    digests [m, 4]: the first is that of the empty context
    hashes, fetched  [k, AHEAD]: scratch
    hits    [2 * TRIES * k, 6]: scratch: candidates at one position, columns like `spans` but the last, which
        is the rank of their salt
    """

    tokens: Int32s
    salts: Int32s
    spans: Int32s
    state: Int64s
    digest_at: Int32s
    digests: Int32s
    hashes: UInt64s
    fetched: UInt64s
    hits: Int32s


@compiled
def ahead(index: Index, prompt: Prompt, row: int, offset: int, start: int) -> int:
    """How many tokens of the entry from `offset` on equal the prompt's from `start` on."""
    limit = min(index.rows[row, NUM] - offset, len(prompt.tokens) - start)
    base = MIN_SPAN * index.rows[row, FIRST] + offset
    length = 0
    while length < limit and index.tokens[base + length] == prompt.tokens[start + length]:
        length += 1
    prompt.state[COMPARED] += length + 1
    return length


@compiled
def behind(index: Index, prompt: Prompt, row: int, offset: int, stop: int, floor: int) -> int:
    """How many tokens of the entry before `offset` equal the prompt's before `stop`, down to `floor`."""
    limit = min(offset, stop - floor)
    base = MIN_SPAN * index.rows[row, FIRST] + offset - 1
    length = 0
    while length < limit and index.tokens[base - length] == prompt.tokens[stop - 1 - length]:
        length += 1
    prompt.state[COMPARED] += length + 1
    return length


@compiled
def rank_of(prompt: Prompt, salt: int) -> int:
    """Place of a salt among those the prompt may see, -1 if it may not."""
    for rank in range(len(prompt.salts)):
        if prompt.salts[rank] == salt:
            return rank
    return -1


@compiled
def whole_context(index: Index, prompt: Prompt, row: int, begin: int) -> int:
    """1 if all before `begin` is what the entry was computed behind, 0 if not; -1: a digest is wanted."""
    if index.rows[row, POSITION] != begin:
        return 0
    known = prompt.digest_at[begin]
    if known < 0:
        prompt.state[NEEDED] = begin
        return -1
    return 1 if same_context(index, prompt, row, known) else 0


@compiled
def same_context(index: Index, prompt: Prompt, row: int, known: int) -> bool:
    """The entry was computed behind what the digest of that number stands for."""
    for i in range(4):  # noqa: SIM110 (a generator does not compile)
        if index.rows[row, CONTEXT + i] != prompt.digests[known, i]:
            return False
    return True


@compiled
def at_end(index: Index, prompt: Prompt, span: int) -> bool:
    """The span reaches its entry's end."""
    row, offset = prompt.spans[span, ROW], prompt.spans[span, OFFSET]
    return bool(offset + prompt.spans[span, STOP] - prompt.spans[span, START] == index.rows[row, NUM])


@compiled
def after_parent(index: Index, prompt: Prompt, count: int, row: int, start: int) -> bool:
    """The last of `count` spans ends at `start`, and is the end of what the entry was computed behind."""
    if count == 0 or prompt.spans[count - 1, STOP] != start:
        return False
    return bool(index.rows[row, PARENT] == prompt.spans[count - 1, ROW]) and at_end(index, prompt, count - 1)


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
    mask = len(slots) - 1
    power, power_16 = index.powers[0], index.powers[1]
    h = rolling(tokens, here, power)
    width = 32  # small behind a span, where the next one is likely near
    while here <= last:
        count = min(width, last - here + 1)
        for i in range(count):
            for k in range(len(salts)):
                finished = finish(h, salts[k])
                hashes[k, i] = finished
                fetched[k, i] = slots[np.int64(finished) & mask]
            if here + i < last:
                h = h * power + np.uint64(tokens[here + i + MIN_SPAN])
                h -= np.uint64(tokens[here + i]) * power_16
        for i in range(count):
            for k in range(len(salts)):
                value, slot = fetched[k, i], np.int64(hashes[k, i])
                while value != 0:
                    if value >> _HALF == hashes[k, i]:
                        if find_slot(index, hashes[k, i], salts[k], tokens, here + i) >= 0:
                            return here + i
                        break
                    slot += 1
                    value = slots[slot & mask]
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
        slot = find_slot(index, finish(h, salt), salt, prompt.tokens, here)
        if slot < 0:
            continue
        front = front_unit(index, slot)
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
    row = index.units[unit, OWNER]
    offset = min(MIN_SPAN * (unit - index.rows[row, FIRST]), index.rows[row, NUM] - MIN_SPAN)
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
            hit[STOP] = here + ahead(index, prompt, hit[ROW], hit[OFFSET] + here - hit[START], here)
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
