"""Changed pieces of an edited file, on streams of made-up tokens."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from agentcache.context import Stream
from agentcache.warm.edits import changed_pieces

Blocks = list[tuple[int, int]]
"""What each block holds, and how many tokens it has."""
blocks = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9)), min_size=1, max_size=12)
PLENTY = 10_000


def stream(content: Blocks) -> Stream:
    """One window: block `value` of size n is n tokens that only that block has."""
    cuts = tuple(accumulate((size for _, size in content), initial=0))
    tokens = [100 * value + size for value, size in content for _ in range(size)]
    names = tuple(f"{value}/{size}" for value, size in content)
    return Stream(np.array(tokens, np.int32), cuts, names, cuts[:-1])


def windows(content: Blocks, size: int) -> list[Stream]:
    return [stream(content[at : at + size]) for at in range(0, len(content), size)]


@settings(max_examples=200, deadline=None)
@given(blocks, blocks, st.integers(1, 12))
def test_every_changed_block_is_computed_behind_text_that_is_warm_or_that_stands_there(
    before: Blocks, after: Blocks, size: int
) -> None:
    old, new = windows(before, size), windows(after, size)
    pieces = changed_pieces(old, new, PLENTY)
    for piece in pieces:
        assert piece.cuts[-1] == len(piece.tokens)
        assert len(piece.covers) == len(piece.cuts) - 1
        first = next(number for number, names in enumerate(piece.covers) if names)
        left = piece.tokens[: piece.cuts[first]].tolist()
        assert any(left == one.tokens[: len(left)].tolist() for one in (*old, *new))
    changed = [name for piece in pieces for names in piece.covers for name in names]
    kept = [f"{value}/{n}" for value, n in before]
    assert set(changed) >= {f"{value}/{n}" for value, n in after} - set(kept), "nothing new is left out"


@settings(max_examples=100, deadline=None)
@given(blocks, st.data())
def test_edits_at_several_places_compute_those_blocks_alone(before: Blocks, data: st.DataObject) -> None:
    distinct = [(100 + number, size) for number, (_, size) in enumerate(before)]
    places = data.draw(st.sets(st.integers(0, len(distinct) - 1), min_size=1))
    after = [(500 + n, size) if n in places else (value, size) for n, (value, size) in enumerate(distinct)]
    pieces = changed_pieces([stream(distinct)], [stream(after)], PLENTY)
    own = [len(names) for piece in pieces for names in piece.covers]
    assert sum(own) == len(places)
    for piece in pieces:
        first = next(number for number, names in enumerate(piece.covers) if names)
        assert (
            piece.tokens[: piece.cuts[first]].tolist()
            == stream(distinct).tokens[: piece.cuts[first]].tolist()
        )


@given(blocks)
def test_nothing_is_computed_for_nothing(content: Blocks) -> None:
    assert changed_pieces([stream(content)], [stream(content)], PLENTY) == []
    assert changed_pieces([stream(content)], [stream(content[:-1])] if content[1:] else [], PLENTY) == []


def test_a_piece_that_does_not_fit_behind_the_old_text_stands_behind_the_new() -> None:
    long, short = [(1, 90), (2, 5)], [(1, 90), (3, 20)]
    (piece,) = changed_pieces([stream(long)], [stream(short)], 100)
    assert piece.tokens.tolist() == stream(short).tokens.tolist()
