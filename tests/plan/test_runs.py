"""Positions as runs, runs as pieces."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcache.plan import Runs, runs, split, take

positions = st.sets(st.integers(0, 300)).map(lambda found: np.array(sorted(found), np.int64))


def positions_of(intervals: Runs) -> list[int]:
    return [position for first, stop in intervals.tolist() for position in range(first, stop)]


@given(positions)
def test_runs_are_the_fewest_intervals(wanted: np.ndarray) -> None:
    found = runs(wanted)
    assert found.dtype == np.int32
    assert found.shape == (len(found), 2)
    assert positions_of(found) == wanted.tolist()
    assert (found[:, 0] < found[:, 1]).all()
    assert (found[1:, 0] > found[:-1, 1]).all(), "runs that touch are one"


@given(positions, st.integers(1, 40))
def test_split_keeps_positions_and_fills_pieces(wanted: np.ndarray, max_tokens: int) -> None:
    pieces = split(runs(wanted), max_tokens)
    assert [position for piece in pieces for position in positions_of(piece)] == wanted.tolist()
    sizes = [len(positions_of(piece)) for piece in pieces]
    assert all(size == max_tokens for size in sizes[:-1])
    assert all(0 < size <= max_tokens for size in sizes)
    assert all(piece.dtype == np.int32 for piece in pieces)


@given(positions, st.integers(1, 400), st.integers(1, 20))
def test_take_is_the_first_piece_and_all_that_is_behind_it(
    wanted: np.ndarray, max_tokens: int, max_rows: int
) -> None:
    first, rest = take(runs(wanted), max_tokens, max_rows)
    taken = len(positions_of(first))
    assert positions_of(first) == wanted.tolist()[:taken]
    assert positions_of(rest) == wanted.tolist()[taken:]
    assert not len(rest) or taken == max_tokens or len(first) == max_rows
    assert taken <= max_tokens
    assert len(first) <= max_rows


def test_examples() -> None:
    assert runs(np.array([1, 2, 3, 7, 9, 10])).tolist() == [[1, 4], [7, 8], [9, 11]]
    pieces = split(np.array([[0, 5], [8, 9], [20, 30]], np.int32), 8)
    assert [piece.tolist() for piece in pieces] == [[[0, 5], [8, 9], [20, 22]], [[22, 30]]]
    assert split(np.empty((0, 2), np.int32), 4) == []
    with pytest.raises(ValueError, match="at least one"):
        split(np.array([[0, 5]], np.int32), 0)
