"""Cutting jobs into steps: everything that is missing is computed, once, a little at a time."""

from __future__ import annotations

from itertools import accumulate, pairwise

from hypothesis import given
from hypothesis import strategies as st

from agentcache.warm.steps import Step, next_step

Case = tuple[list[int], list[bool]]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    lengths = draw(st.lists(st.integers(1, 60), min_size=1, max_size=12))
    cuts = list(accumulate(lengths, initial=draw(st.integers(0, 3))))
    missing = draw(st.lists(st.booleans(), min_size=len(lengths), max_size=len(lengths)))
    return cuts, missing


def all_steps(cuts: list[int], missing: list[bool], max_new: int, page: int) -> list[tuple[Step, list[bool]]]:
    """The steps of a whole job, each with the intervals it stores."""
    left, reached, steps = list(missing), 0, []
    while (step := next_step(cuts, left, reached, max_new, page)) is not None:
        stored = [
            gone and stop <= step.stop and stop in step.cuts
            for gone, stop in zip(left, cuts[1:], strict=True)
        ]
        left = [gone and not now for gone, now in zip(left, stored, strict=True)]
        reached = step.stop
        steps.append((step, stored))
        assert len(steps) < 1000, "a step that stores nothing must reach further"
    return steps


@given(cases(), st.integers(1, 100), st.integers(1, 16))
def test_every_missing_entry_is_stored_by_exactly_one_step(case: Case, max_new: int, page: int) -> None:
    cuts, missing = case
    steps = all_steps(cuts, missing, max_new, page)
    stored = [sum(now[number] for _, now in steps) for number in range(len(missing))]
    assert stored == [int(gone) for gone in missing]


@given(cases(), st.integers(1, 100), st.integers(1, 16))
def test_no_step_computes_more_than_it_may_and_together_they_compute_what_is_missing(
    case: Case, max_new: int, page: int
) -> None:
    cuts, missing = case
    steps = [step for step, _ in all_steps(cuts, missing, max_new, page)]
    assert all(0 < step.num_new <= max_new for step in steps)
    wanted = sum(stop - start for (start, stop), gone in zip(pairwise(cuts), missing, strict=True) if gone)
    assert sum(step.num_new for step in steps) == wanted
    assert [step.stop for step in steps] == sorted({step.stop for step in steps}), "they go forward"


@given(cases(), st.integers(16, 100), st.integers(1, 16))
def test_a_step_inside_an_entry_ends_with_a_page(case: Case, max_new: int, page: int) -> None:
    cuts, missing = case
    for step, _ in all_steps(cuts, missing, max_new, page):
        assert step.stop in cuts or step.stop % page == 0
        assert len(step.cuts) >= 2
