"""Spans of one file joined where only a few tokens between them changed, over and over. Machine code.

A file that is shown with line numbers is other text everywhere once a line is inserted at its top, and still the same
text between the numbers. No window of MIN_SPAN tokens may be left of it, but the walk has found some, and from each of
those one can go on: behind a few tokens that differ on both sides the same file's tokens are looked for again. Those in
between are *holes*: they are recomputed. A run with fewer than MIN_GAPS of them is left as it was found.
"""

from __future__ import annotations

from agentcache.match.index import CHILD, NUM, OLDER, SALT, Index, Int32s
from agentcache.match.jit import compiled
from agentcache.match.prompt import COUNT, EXACT, OFFSET, ROW, STANDS, START, STOP, Prompt, ahead, rank_of
from agentcache.match.rules import MAX_GAP, MAX_LONGER, MIN_BARRIER, MIN_GAPS, MIN_RESUMED, MIN_SPAN

_MAX_CHILDREN = 4


@compiled
def bridge(index: Index, prompt: Prompt, out: Int32s, holes: Int32s) -> tuple[int, int]:
    """Write the prompt's spans, joined, to `out` [n + 1, 6], and the positions of their holes to `holes` [n].

    Returns how many of each. A piece that was joined on counts as standing behind its context.
    """
    num_out, num_holes, covered = 0, 0, 0
    for i in range(prompt.state[COUNT]):
        span = prompt.spans[i]
        moved = max(0, covered - span[START])
        if span[STOP] - span[START] - moved < (MIN_SPAN if moved else 1):
            continue  # joined to a run already, or next to nothing is left of it
        out[num_out] = span
        if moved:
            out[num_out, START] += moved
            out[num_out, OFFSET] += moved
            out[num_out, STANDS] = out[num_out, EXACT] = 0
        more_out, more_holes = _run(index, prompt, i, out, num_out, holes, num_holes)
        num_out, num_holes = more_out, more_holes
        covered = out[num_out - 1, STOP]
    return num_out, num_holes


@compiled
def _run(
    index: Index, prompt: Prompt, i: int, out: Int32s, place: int, holes: Int32s, num_holes: int
) -> tuple[int, int]:
    """Go on behind span `i`, which is `out[place]`. New numbers of spans and holes; as before if there is no run."""
    last, first_hole, former_stop = place, num_holes, int(out[place, STOP])
    row, here = int(out[place, ROW]), former_stop
    offset = int(out[place, OFFSET]) + here - int(out[place, START])
    gaps = 0
    following = i + 1
    while True:
        following = _next_barrier(prompt, following, here)
        limit = int(prompt.spans[following, START]) if following < prompt.state[COUNT] else len(prompt.tokens)
        if limit == here and following < prompt.state[COUNT]:
            barrier = prompt.spans[following]
            if barrier[ROW] != row or barrier[OFFSET] != offset:
                break  # another file's
            length = int(barrier[STOP] - barrier[START])
            here, offset = here + length, offset + length
            out[last, STOP] = here
            continue
        found, skipped, dropped = _resume(index, prompt, row, offset, here)
        if found < 0 or here + skipped >= limit:
            break
        begin = dropped if found != row else offset + dropped
        length = min(ahead(index, prompt, found, begin, here + skipped), limit - here - skipped)
        own = min(skipped, dropped)  # holes that have a counterpart in the entry
        if found == row and skipped == dropped:
            out[last, STOP] = here + skipped + length
        else:
            last += 1
            piece = out[last]
            piece[START], piece[STOP] = here + skipped - own, here + skipped + length
            piece[ROW], piece[OFFSET], piece[STANDS], piece[EXACT] = found, begin - own, 1, 0
        for hole in range(here + skipped - own, here + skipped):
            holes[num_holes] = hole
            num_holes += 1
        if skipped:  # else the next block simply follows: that is no gap
            gaps += 1
        row, here, offset = found, here + skipped + length, begin + length
    if gaps < MIN_GAPS:
        out[place, STOP] = former_stop
        return place + 1, first_hole
    return last + 1, num_holes


@compiled
def _next_barrier(prompt: Prompt, span: int, here: int) -> int:
    """The first span from `span` on that begins at `here` or behind and is too long to be a coincidence."""
    while span < prompt.state[COUNT] and (
        prompt.spans[span, START] < here or prompt.spans[span, STOP] - prompt.spans[span, START] < MIN_BARRIER
    ):
        span += 1
    return span


@compiled
def _resume(index: Index, prompt: Prompt, row: int, offset: int, here: int) -> tuple[int, int, int]:
    """Where the entry, or what follows it in its file, goes on in the prompt behind a small gap.

    Returns the row, the prompt's tokens in the gap, and the entry's own (the child's, if it is one); row -1 if nowhere.
    """
    num = int(index.rows[row, NUM])
    for gap in range(1, MAX_GAP + 1):
        for longer in range(-MAX_LONGER, MAX_LONGER + 1):
            if gap + longer >= 0 and _goes_on(index, prompt, row, offset + gap, here + gap + longer):
                return row, gap + longer, gap
    if num - offset > MAX_GAP:
        return -1, 0, 0
    child = int(index.rows[row, CHILD])
    for _ in range(_MAX_CHILDREN):
        if child < 0:
            break
        if rank_of(prompt, index.rows[child, SALT]) >= 0:
            for gap in range(MAX_GAP + 1):
                for longer in range(-MAX_LONGER, MAX_LONGER + 1):
                    skipped = num - offset + gap + longer
                    if skipped >= 0 and _goes_on(index, prompt, child, gap, here + skipped):
                        return child, skipped, gap
        child = int(index.rows[child, OLDER])
    return -1, 0, 0


@compiled
def _goes_on(index: Index, prompt: Prompt, row: int, offset: int, here: int) -> bool:
    """Enough tokens are the same, or all that are left of the entry."""
    left = int(index.rows[row, NUM]) - offset
    if left <= 0 or here >= len(prompt.tokens):
        return False
    return bool(ahead(index, prompt, row, offset, here) >= min(MIN_RESUMED, left))
