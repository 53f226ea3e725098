"""One prompt on its way through the matcher, and how it compares with entries. Machine code; see `Index`."""

from __future__ import annotations

from typing import Final, NamedTuple

from agentcache.match.index import CONTEXT, FIRST, NUM, PARENT, POSITION, Index, Int32s, Int64s, UInt64s
from agentcache.match.jit import compiled
from agentcache.match.rules import MIN_SPAN

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
