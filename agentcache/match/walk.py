"""From left to right through a prompt. Machine code; `reference.py` says the same in plain words."""

from __future__ import annotations

from agentcache.match.candidates import best_hit, gather, next_hit
from agentcache.match.index import CHILD, NUM, OLDER, PARENT, POSITION, SALT, Index, Int32s
from agentcache.match.jit import compiled
from agentcache.match.names import name_less
from agentcache.match.prompt import (
    COUNT,
    EXACT,
    HERE,
    OFFSET,
    ROW,
    STANDS,
    START,
    STOP,
    Prompt,
    after_parent,
    ahead,
    at_end,
    behind,
    rank_of,
    whole_context,
)
from agentcache.match.rules import MAX_CHILDREN, MIN_SPAN, OVERLAP

DONE = 0
NEEDS_DIGEST = 1
"""What `walk` returns: NEEDS_DIGEST to be called again once the digest at `prompt.state[NEEDED]` is known."""


@compiled
def walk(index: Index, prompt: Prompt) -> int:
    """Find all spans from `prompt.state[HERE]` on. Nothing is half done when it asks for a digest."""
    state = prompt.state
    while state[HERE] < len(prompt.tokens):
        here = state[HERE]
        count = state[COUNT]
        floor = prompt.spans[count - 1, STOP] if count > 0 else 0
        if count > 0 and floor == here and at_end(index, prompt, count - 1):
            child, length = _child(index, prompt, int(prompt.spans[count - 1, ROW]), here)
            if child >= 0:
                _push(index, prompt, child, here, 0, length, False)
                state[HERE] = here + length
                continue
        here = next_hit(index, prompt, here)
        if here < 0:
            break
        state[HERE] = here
        num = gather(index, prompt, here, floor)
        if num < 0 or not _take(index, prompt, prompt.hits[best_hit(index, prompt, num, here)], floor):
            return NEEDS_DIGEST
        state[HERE] = prompt.spans[state[COUNT] - 1, STOP]
    return DONE


@compiled
def _child(index: Index, prompt: Prompt, parent: int, here: int) -> tuple[int, int]:
    """The entry that stands behind the span that ends here, and how long it matches; -1, 0 if none does."""
    best, best_length, best_rank = -1, 0, 0
    row = int(index.rows[parent, CHILD])
    for _ in range(MAX_CHILDREN):
        if row < 0:
            break
        rank = rank_of(prompt, index.rows[row, SALT])
        if rank >= 0:
            length = ahead(index, prompt, row, 0, here)
            better = length > best_length
            if best >= 0 and length == best_length:
                better = rank < best_rank or (rank == best_rank and name_less(index, row, best))
            if better and (length == index.rows[row, NUM] or length >= MIN_SPAN):
                best, best_length, best_rank = row, length, rank
        row = int(index.rows[row, OLDER])
    return best, best_length


@compiled
def _take(index: Index, prompt: Prompt, hit: Int32s, floor: int) -> bool:
    """Settle the seam, chain backwards, append; False, and nothing changed, if a digest is wanted first."""
    state, spans = prompt.state, prompt.spans
    row, start, offset = int(hit[ROW]), int(hit[START]), int(hit[OFFSET])
    count, reach, cut = state[COUNT], 0, -1
    if offset > 0 and count > 0 and start == floor:
        reach = behind(index, prompt, row, offset, start, max(start - OVERLAP, 0))
        lowest = start - reach
        while count > 0 and spans[count - 1, STANDS] == 0 and lowest <= spans[count - 1, START]:
            count -= 1
        floor = spans[count - 1, STOP] if count > 0 else 0
        begins = count > 0 and lowest < floor and reach == offset
        # the last tokens of one span or the first of the other: a head is worth more
        if begins and not at_end(index, prompt, count - 1) and lowest - spans[count - 1, START] >= MIN_SPAN:
            cut = floor = lowest
        moved = start - max(lowest, floor)
        start, offset, reach = start - moved, offset - moved, reach - moved
    whole = 0
    begin = start - offset
    # a span that gives up its last tokens does not reach its entry's end any more: nothing stands behind it
    if reach == offset and (cut >= 0 or not after_parent(index, prompt, count, row, begin)):
        whole = whole_context(index, prompt, row, begin)
        if whole < 0:
            return False
    state[COUNT] = count
    if cut >= 0:
        spans[count - 1, STOP] = cut
    _push_chain(index, prompt, row, start, offset, hit[STOP] - start, whole == 1, floor)
    return True


@compiled
def _push_chain(
    index: Index, prompt: Prompt, row: int, start: int, offset: int, length: int, whole: bool, floor: int
) -> None:
    """Append a span, and before it those of its entry's parents that end where it begins."""
    state, spans = prompt.state, prompt.spans
    stop = start
    first, skip, child = start, offset, row
    count = 0
    # parents are found from right to left, and appended so; then turned round
    while skip == 0 and first > floor:
        parent = int(index.rows[child, PARENT])
        num = int(index.rows[parent, NUM]) if parent >= 0 else 0
        if num == 0 or rank_of(prompt, index.rows[parent, SALT]) < 0:
            break
        size = behind(index, prompt, parent, num, stop, floor)
        if size < min(num, MIN_SPAN):
            break
        first, skip, child = stop - size, num - size, parent
        place = state[COUNT] + count
        spans[place, START], spans[place, STOP], spans[place, ROW] = first, stop, parent
        count += 1
        stop = first
    base = state[COUNT]
    for i in range(count // 2):
        for column in range(3):
            a, b = base + i, base + count - 1 - i
            spans[a, column], spans[b, column] = spans[b, column], spans[a, column]
    for _ in range(count):
        found, first, stop = spans[state[COUNT], ROW], spans[state[COUNT], START], spans[state[COUNT], STOP]
        skip = int(index.rows[found, NUM] - (stop - first))
        _push(index, prompt, int(found), int(first), skip, int(stop - first), whole and skip == 0)
    _push(index, prompt, row, start, offset, length, whole)


@compiled
def _push(index: Index, prompt: Prompt, row: int, start: int, offset: int, length: int, whole: bool) -> None:
    """Append a span. Behind its parent it is as exact as that one; else it needs its whole context."""
    count = prompt.state[COUNT]
    behind_parent = offset == 0 and after_parent(index, prompt, count, row, start)
    exact = start - offset == index.rows[row, POSITION]
    exact = exact and (whole or (behind_parent and prompt.spans[count - 1, EXACT] == 1))
    span = prompt.spans[count]
    span[START], span[STOP], span[ROW], span[OFFSET] = start, start + length, row, offset
    span[STANDS] = 1 if whole or behind_parent else 0
    span[EXACT] = 1 if exact else 0
    prompt.state[COUNT] = count + 1
