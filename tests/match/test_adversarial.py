"""Inputs made to be slow: the work is counted, not timed."""

from __future__ import annotations

import numpy as np
import pytest

from agentcache.entry import EntryInfo, Tokens, as_tokens
from agentcache.match import Matcher
from agentcache.match.rules import MAX_CHILDREN, TRIES
from agentcache.match.synthetic import alone, join, stream

TRIED = 2 * TRIES
"""Entries tried at one position under one salt."""


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def matcher_of(entries: list[EntryInfo]) -> Matcher:
    matcher = Matcher()
    for entry in entries:
        matcher.add(entry)
    return matcher


def compared(matcher: Matcher, prompt: Tokens) -> float:
    """Tokens compared for each token of the prompt."""
    matcher.match(prompt)
    return matcher.num_compared / len(prompt)


@pytest.mark.parametrize("num_tokens", [2_000, 20_000, 200_000])
def test_equal_tokens(num_tokens: int) -> None:
    equal = as_tokens([7] * num_tokens)
    blocks = [alone(equal[:length]) for length in (16, 17, 100, 1000, num_tokens // 3)]
    assert compared(matcher_of(blocks), equal) <= 2 * TRIED + 4


@pytest.mark.parametrize("num_files", [100, 3000])
def test_the_same_blocks_in_thousands_of_files(num_files: int) -> None:
    """Every file has the same blocks behind a head of its own: each window is in as many entries as files."""
    shared = [as_tokens(rng(1).integers(0, 1000, 300)), as_tokens(rng(2).integers(0, 1000, 40))]
    files = [stream([rng(10 + i).integers(0, 1000, 20), *shared]) for i in range(num_files)]
    matcher = matcher_of([entry for file in files for entry in file])
    prompt = join(
        *[part for file in files[:50] for part in (shared[0], rng(5).integers(0, 1000, 30), shared[1])]
    )
    assert compared(matcher, prompt) <= TRIED + 2
    for file in (files[0], files[-1], files[num_files // 2]):
        spans = matcher.match(join([1, 2, 3], *file))
        assert [span.entry for span in spans] == [entry.id for entry in file], (
            "its own, not one of the others"
        )


def test_thousands_of_children() -> None:
    head = rng(1).integers(0, 1000, 30)
    common = rng(2).integers(0, 1000, 15)
    files = [stream([head, join(common, rng(10 + i).integers(0, 1000, 3))]) for i in range(3000)]
    matcher = matcher_of([entry for file in files for entry in file])
    assert compared(matcher, join(*[head] * 200)) <= TRIED + 2 + MAX_CHILDREN / 30
    prompt = join(*[part for _ in range(200) for part in (head, common, [5000])])
    assert compared(matcher, prompt) <= 2 * MAX_CHILDREN


def test_a_long_block_is_found_behind_a_common_head() -> None:
    """Its first windows are those of thousands of newer blocks; a later one leads to all of it."""
    licence = rng(1).integers(0, 1000, 64)
    long = alone(np.concatenate([licence, rng(2).integers(0, 1000, 400)]))
    others = [alone(np.concatenate([licence, rng(10 + i).integers(0, 1000, 20)])) for i in range(2000)]
    matcher = matcher_of([long, *others])
    [span] = matcher.match(join([1, 2, 3], long, [4, 5]))
    assert (span.start, span.length, span.entry) == (3, 464, long.id)


def test_a_standing_block_is_not_outshone_by_long_ones() -> None:
    """Short blocks that stand are taken one by one; the long ones that do not are not compared each time."""
    whole = rng(1).integers(0, 1000, 30_000)
    pieces = stream([whole[i : i + 20] for i in range(0, len(whole), 20)])
    longs = [stream([rng(10 + i).integers(0, 1000, 20), whole])[1] for i in range(10)]
    matcher = matcher_of([*pieces, *longs])
    assert compared(matcher, as_tokens(whole)) <= 4
    assert all(span.exact for span in matcher.match(as_tokens(whole)))


def test_many_tilings_of_one_stream() -> None:
    whole = as_tokens(rng(1).integers(0, 1000, 5_000))
    tilings = [
        stream([whole[:shift], *(whole[i : i + 50] for i in range(shift, 5000, 50))])
        for shift in range(1, 50)
    ]
    matcher = matcher_of([entry for tiling in tilings for entry in tiling])
    assert compared(matcher, whole[7:]) <= 2 * TRIED
    assert compared(matcher, whole) <= 2 * TRIED


def test_digests_are_asked_for_once_a_position() -> None:
    """Every second block replaced by one of the same length: no shift, and a digest behind each hole."""
    blocks = [as_tokens(rng(i).integers(0, 1000, 20)) for i in range(400)]
    matcher = matcher_of(stream(blocks))
    prompt = join(*[block if i % 2 else block + 1 for i, block in enumerate(blocks)])
    spans = matcher.match(prompt)
    assert len(spans) == 200
    assert not any(span.context_stands for span in spans)
    assert matcher.num_compared <= 6 * len(prompt)
