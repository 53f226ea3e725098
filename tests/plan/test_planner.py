"""Plans: what is reused, what is computed again, what is left to the engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentcache.plan import (
    STRATEGIES,
    Plan,
    RecomputePolicy,
    Span,
    clip,
    make_plan,
    reused_positions,
    top_up,
)
from agentcache.plan.planner import allowance, num_recomputed_in_spans


def span(start: int, stop: int, stands: bool = False, offset: int = 0) -> Span:
    return Span(start, stop - start, f"entry at {start}", offset, start - offset, stands, False)


def plan_of(tokens_count: int, start: int, spans: list[Span], **policy: Any) -> Plan:
    plan = make_plan(tokens_count, start, spans, RecomputePolicy(**{"min_saved_tokens": 0, **policy}))
    assert plan is not None
    return plan


def ranges(plan: Plan) -> list[tuple[int, int]]:
    from agentcache.plan import runs

    return [(first, stop) for first, stop in runs(plan.recompute).tolist()]


@st.composite
def scenes(draw: Any) -> tuple[int, int, list[Span]]:
    """Tokens in the prompt, tokens of the prefix hit, spans."""
    spans, here = [], 0
    for _ in range(draw(st.integers(0, 12))):
        here += draw(st.sampled_from([0, 0, 1, 3, 20, 100]))
        length = draw(st.sampled_from([1, 2, 15, 16, 17, 40, 200]))
        spans.append(span(here, here + length, draw(st.booleans()), draw(st.sampled_from([0, 0, 5]))))
        here += length
    tokens_count = here + draw(st.sampled_from([0, 1, 30]))
    return tokens_count, draw(st.integers(0, tokens_count)), spans


policies = st.builds(
    RecomputePolicy,
    strategy=st.sampled_from(sorted(STRATEGIES)),
    boundary_tokens=st.sampled_from([0, 1, 16, 64]),
    budget=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
    min_saved_tokens=st.sampled_from([0, 32]),
    recompute_last=st.booleans(),
)


@settings(max_examples=300, deadline=None)
@given(scene=scenes(), policy=policies, page_size=st.sampled_from([None, 1, 16, 128]))
def test_every_position_has_exactly_one_fate(
    scene: tuple[int, int, list[Span]], policy: RecomputePolicy, page_size: int | None
) -> None:
    tokens_count, start, spans = scene
    plan = make_plan(tokens_count, start, spans, policy, page_size)
    if plan is None:
        return
    assert plan.start == start < plan.stop < tokens_count
    assert page_size is None or plan.stop % page_size == 0
    assert plan.recompute.dtype == np.int64
    assert (np.diff(plan.recompute) > 0).all()
    reused = reused_positions(plan)
    fates = [*range(start), *reused.tolist(), *plan.recompute.tolist(), *range(plan.stop, tokens_count)]
    assert sorted(fates) == list(range(tokens_count))
    inside = {position for one in plan.spans for position in range(one.start, one.stop)}
    assert set(reused.tolist()) <= inside
    assert len(inside) == plan.num_matched
    for one in plan.spans:
        assert start <= one.start
        assert one.stop <= plan.stop
        [whole] = [other for other in spans if other.entry == one.entry]
        assert whole.start <= one.start
        assert one.stop <= whole.stop
        assert one.start - one.offset == whole.start - whole.offset
        assert (one.shift, one.context_stands, one.exact) == (whole.shift, whole.context_stands, whole.exact)
    assert plan.spans[-1].stop == plan.stop
    assert policy.chosen.everything or len(reused)
    whole_prompt = make_plan(tokens_count, 0, spans, policy, page_size)
    assert whole_prompt is not None
    assert plan.stop == whole_prompt.stop
    assert list(plan.spans) == clip(whole_prompt.spans, start, plan.stop)
    assert plan.recompute.tolist() == [at for at in whole_prompt.recompute.tolist() if at >= start]
    if policy.strategy == "none" and not policy.recompute_last:
        assert len(reused) == plan.num_matched
    if policy.chosen.everything:
        assert len(reused) == 0
    elif not policy.recompute_last:
        assert num_recomputed_in_spans(whole_prompt) <= allowance(
            policy.budget or 0, whole_prompt.num_matched
        )
        for one in plan.spans:
            if one.context_stands:
                assert not set(plan.recompute.tolist()) & set(range(one.start, one.stop))


@settings(max_examples=200, deadline=None)
@given(scene=scenes(), policy=policies, data=st.data())
def test_top_up_takes_the_best_within_the_budget(
    scene: tuple[int, int, list[Span]], policy: RecomputePolicy, data: st.DataObject
) -> None:
    plan = make_plan(*scene, replace(policy, min_saved_tokens=0))
    if plan is None:
        return
    levels = st.sampled_from([0.0, 1.0, 2.0, 3.5, float("nan"), float("-inf")])
    scores = np.array([data.draw(levels) for _ in range(min(plan.stop - plan.start, 40))], np.float32)
    scores = np.resize(scores, plan.stop - plan.start)
    budget = data.draw(st.sampled_from([0.0, 0.1, 0.5, 1.0]))
    more = top_up(plan, scores, budget)
    assert (more.start, more.stop, more.spans) == (plan.start, plan.stop, plan.spans)
    assert (np.diff(more.recompute) > 0).all()
    assert set(plan.recompute.tolist()) <= set(more.recompute.tolist())
    added = np.setdiff1d(more.recompute, plan.recompute)
    room = max(allowance(budget, plan.num_matched) - num_recomputed_in_spans(plan), 0)
    wanted = reused_positions(plan)[scores[reused_positions(plan) - plan.start] != -np.inf]
    assert len(added) == min(room, len(wanted))
    assert set(added.tolist()) <= set(wanted.tolist())
    scores[np.isnan(scores)] = -1.0
    left, taken = scores[reused_positions(more) - plan.start], scores[added - plan.start]
    assert not len(left) or not len(taken) or left.max() <= taken.min()


def test_boundary_tokens_only_where_context_does_not_stand() -> None:
    spans = [span(5, 105), span(105, 205, stands=True), span(230, 300), span(300, 310), span(310, 400, True)]
    plan = plan_of(420, 0, spans)
    assert ranges(plan) == [(0, 21), (205, 246), (300, 310)]
    assert (plan.start, plan.stop) == (0, 400)
    assert ranges(plan_of(420, 0, spans, strategy="none")) == [(0, 5), (205, 230)]
    assert ranges(plan_of(420, 0, spans, strategy="all")) == [(0, 400)]
    assert ranges(plan_of(420, 0, spans, boundary_tokens=2)) == [(0, 7), (205, 232), (300, 302)]


def test_the_engine_computes_the_last_token() -> None:
    plan = plan_of(100, 0, [span(0, 100, stands=True)])
    assert (plan.stop, ranges(plan), plan.num_matched) == (99, [], 99)


def test_a_prefix_hit_cuts_spans_and_keeps_what_stood() -> None:
    plan = plan_of(300, 50, [span(0, 40, True), span(40, 100, True), span(110, 299)])
    assert ranges(plan) == [(100, 126)]
    assert [(one.start, one.stop, one.offset) for one in plan.spans] == [(50, 100, 10), (110, 299, 0)]
    assert make_plan(300, 299, [span(0, 299, True)], RecomputePolicy(min_saved_tokens=0)) is None
    assert make_plan(0, 0, [], RecomputePolicy()) is None


def test_last_tokens_on_request() -> None:
    spans = [span(0, 50, True), span(50, 90, True), span(90, 130), span(140, 200, True)]
    plan = plan_of(300, 0, spans, strategy="none", recompute_last=True)
    assert ranges(plan) == [(89, 90), (129, 140), (199, 200)]


def test_a_budget_limits_every_boundary_alike() -> None:
    spans = [span(100 * i, 100 * i + 100) for i in range(5)]
    for budget, limit in ((1.0, 16), (0.16, 16), (0.159, 15), (0.08, 8), (0.01, 1), (0.009, 0)):
        plan = plan_of(501, 0, spans, budget=budget)
        assert len(plan.recompute) == 5 * limit
    half = plan_of(501, 0, spans, budget=0.08, strategy="boundary+tail")
    assert len(half.recompute) == 5 * 4
    full = top_up(half, np.arange(500, dtype=np.float32), 0.08)
    assert ranges(full)[-1] == (480, 500)
    assert len(plan_of(501, 0, spans, budget=0.08, strategy="deviation").recompute) == 0


def test_spans_of_which_nothing_is_reused_are_left_to_the_tail() -> None:
    assert plan_of(300, 0, [span(0, 100, True), span(150, 166)]).stop == 100
    assert plan_of(300, 0, [span(0, 100, True), span(150, 167)]).stop == 167
    assert plan_of(300, 0, [span(0, 100, True), span(150, 166)], strategy="all").stop == 166
    assert make_plan(300, 0, [span(0, 16), span(20, 30)], RecomputePolicy(min_saved_tokens=0)) is None


def test_a_reuse_that_saves_little_is_no_plan() -> None:
    spans = [span(0, 47)]
    assert make_plan(300, 0, spans, RecomputePolicy(min_saved_tokens=32)) is None
    assert make_plan(300, 0, spans, RecomputePolicy(min_saved_tokens=31)) is not None
    scored = RecomputePolicy("deviation", budget=0.5, min_saved_tokens=25)
    assert make_plan(300, 0, spans, scored) is None, "what the scores may still take is not saved"


def test_a_chain_that_saves_little_is_dropped_and_the_others_stay() -> None:
    spans = [span(0, 40), span(40, 60, stands=True), span(100, 140), span(200, 300)]
    plan = make_plan(400, 0, spans, RecomputePolicy(min_saved_tokens=32))
    assert plan is not None
    assert [one.start for one in plan.spans] == [0, 40, 200]
    assert set(range(100, 140)) <= set(plan.recompute.tolist())


def test_a_short_tail_is_computed_with_the_plan() -> None:
    spans = [span(0, 100, stands=True)]
    policy = RecomputePolicy(min_saved_tokens=0, tail_tokens=49)
    plan = make_plan(150, 0, spans, policy)
    assert plan is not None
    assert (plan.stop, ranges(plan)) == (149, [(100, 149)]), "the last token is vLLM's, for its logits"
    plan = make_plan(151, 0, spans, policy)
    assert plan is not None
    assert (plan.stop, ranges(plan)) == (100, [])
    assert make_plan(150, 100, spans, policy) is None, "a tail alone is no reuse"


def test_a_prefix_hit_inside_a_boundary_leaves_the_rest_of_it() -> None:
    plan = make_plan(400, 105, [span(100, 300)], RecomputePolicy(min_saved_tokens=0))
    assert plan is not None
    assert ranges(plan) == [(105, 116)]
    plan = make_plan(400, 290, [span(100, 300)], RecomputePolicy(min_saved_tokens=32))
    assert plan is not None, "it is the same reuse that began before the prefix hit ended"
    assert (len(plan.recompute), plan.num_matched) == (0, 10)


def test_pages_are_claimed_whole() -> None:
    policy = RecomputePolicy(min_saved_tokens=0)
    plan = make_plan(400, 0, [span(0, 200, True), span(210, 380, True)], policy, 128)
    assert plan is not None
    assert (plan.stop, plan.spans[-1].stop) == (256, 256)
    plan = make_plan(400, 0, [span(0, 200, True), span(260, 380)], policy, 128)
    assert plan is not None
    assert plan.stop == 128, "a plan ends with a span, not with a hole"


def test_policies_are_checked() -> None:
    for wrong in (
        {"strategy": "guess"},
        {"budget": 1.1},
        {"budget": -0.1},
        {"boundary_tokens": -1},
        {"min_saved_tokens": -1},
        {"strategy": "deviation"},
    ):
        with pytest.raises(ValueError):
            RecomputePolicy(**wrong)
    assert {name for name, one in STRATEGIES.items() if one.scored_by == "probe"} == {
        "boundary+tail",
        "deviation",
    }


def test_clip_leaves_whole_spans_alone() -> None:
    spans = [span(0, 10), span(10, 20)]
    assert clip(spans, 0, 20) == spans
    assert clip(spans, 10, 10) == []
    assert [(one.start, one.stop, one.offset) for one in clip(spans, 3, 12)] == [(3, 10, 3), (10, 12, 0)]


def test_overlapping_spans_are_refused() -> None:
    with pytest.raises(AssertionError, match="overlap"):
        make_plan(100, 0, [span(0, 50), span(40, 60)], RecomputePolicy())


def test_many_small_spans_do_not_take_long() -> None:
    """Counted by allocation-free arithmetic elsewhere; here only that ten thousand are handled at once."""
    spans = [span(20 * i, 20 * i + 16) for i in range(10_000)]
    assert make_plan(200_000, 0, spans, RecomputePolicy(min_saved_tokens=0)) is None
    assert plan_of(200_001, 0, [*spans, span(200_000 - 3, 200_000, True)]).stop == 200_000
