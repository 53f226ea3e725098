"""Tokens that the answer is likely to copy from: told from the prompt alone, against the slow obvious version."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentcache.entry import Tokens, as_tokens
from agentcache.plan import Plan, RecomputePolicy, Span, make_plan, plan_prompt, reused_positions
from agentcache.plan.copied import ASKING_TOKENS, BEHIND_TOKENS, COMMON, GRAM, copy_scores
from agentcache.plan.planner import allowance, num_recomputed_in_spans

COPY = RecomputePolicy("boundary+copy", boundary_tokens=16, budget=0.1, min_saved_tokens=0)


def span(start: int, stop: int, stands: bool = False) -> Span:
    return Span(start, stop - start, f"entry at {start}", 0, start, stands, False)


def distinct(count: int, seed: int = 0) -> Tokens:
    return as_tokens(np.random.default_rng(seed).permutation(100_000)[:count])


def reference(plan: Plan, tokens: Tokens, boundary_tokens: int) -> list[float]:
    """`copy_scores`, one place after the other."""
    end = plan.spans[-1].stop
    asking = tokens[end:].tolist()[-ASKING_TOKENS:]
    late = {tuple(asking[i : i + GRAM]): 1 + i / len(asking) for i in range(len(asking) - GRAM + 1)}
    places = [(at, tuple(tokens[at : at + GRAM].tolist())) for at in range(plan.start, end - GRAM + 1)]
    times = Counter(gram for _, gram in places)
    scores = [0.0] * (plan.stop - plan.start)
    for at, gram in places:
        if gram in late and times[gram] <= COMMON:
            for behind in range(min(GRAM + BEHIND_TOKENS, end - at)):
                weight = 1.0 - 0.8 * behind / (GRAM + BEHIND_TOKENS - 1)
                scores[at - plan.start + behind] += weight * late[gram] / times[gram]
    for one in plan.spans:
        for at in range(one.start, one.stop):
            if one.context_stands:
                scores[at - plan.start] = 0.0
            elif at < one.start + boundary_tokens:
                scores[at - plan.start] += 1e-6 / (at - one.start + 1)
    return [score or float("-inf") for score in scores]


@st.composite
def prompts(draw: Any) -> tuple[Tokens, list[Span]]:
    """Few different tokens, so that much stands twice."""
    spans, here = [], 0
    for _ in range(draw(st.integers(1, 5))):
        here += draw(st.sampled_from([0, 0, 2, 20]))
        length = draw(st.sampled_from([17, 40, 120]))
        spans.append(span(here, here + length, draw(st.booleans())))
        here += length
    count = here + draw(st.sampled_from([1, 2, 3, 40, ASKING_TOKENS + 9]))
    kinds = draw(st.sampled_from([3, 6, 40]))
    seed = draw(st.integers(0, 1000))
    return as_tokens(np.random.default_rng(seed).integers(0, kinds, count)), spans


@settings(max_examples=150, deadline=None)
@given(prompt=prompts(), tail_tokens=st.sampled_from([0, 64]), boundary_tokens=st.sampled_from([0, 16, 512]))
def test_scores_are_those_of_the_slow_version(
    prompt: tuple[Tokens, list[Span]], tail_tokens: int, boundary_tokens: int
) -> None:
    tokens, spans = prompt
    plan = make_plan(len(tokens), 0, spans, replace(COPY, tail_tokens=tail_tokens))
    if plan is not None:
        fast, slow = (scores(plan, tokens, boundary_tokens) for scores in (copy_scores, reference))
        np.testing.assert_allclose(fast, slow, rtol=1e-4, atol=1e-9)


@settings(max_examples=150, deadline=None)
@given(prompt=prompts(), share=st.floats(0, 1), budget=st.sampled_from([0.05, 0.1, 0.4]))
def test_the_budget_is_spent_and_a_prefix_hit_changes_nothing(
    prompt: tuple[Tokens, list[Span]], share: float, budget: float
) -> None:
    tokens, spans = prompt
    policy = replace(COPY, budget=budget, boundary_tokens=512)
    plan = plan_prompt(tokens, 0, spans, policy)
    if plan is None:
        return
    assert (np.diff(plan.recompute) > 0).all()
    seams = sum(one.length for one in plan.spans if not one.context_stands)
    assert num_recomputed_in_spans(plan) == min(allowance(budget, plan.num_matched), seams)
    assert len(reused_positions(plan))
    start = int(share * plan.stop)
    later = plan_prompt(tokens, start, spans, policy)
    if later is not None:
        assert later.stop == plan.stop
        assert later.recompute.tolist() == [at for at in plan.recompute.tolist() if at >= start]


def test_what_follows_a_definition_that_the_prompt_opens_again_is_recomputed() -> None:
    code, question = distinct(1000), distinct(1100)[1000:]
    signature = code[700:712]
    tokens = np.concatenate([code, question, signature])
    plan = plan_prompt(tokens, 0, [span(0, 500), span(500, 1000)], COPY)
    assert plan is not None
    chosen = set(plan.recompute.tolist())
    assert set(range(702, 745)) <= chosen
    assert set(range(8)) <= chosen, "boundaries have their half"
    assert not chosen & set(range(100, 500)), "nothing of it is asked for"
    plain = plan_prompt(tokens, 0, [span(0, 500), span(500, 1000)], replace(COPY, strategy="boundary"))
    assert plain is not None
    assert not set(plain.recompute.tolist()) & set(range(702, 745)), "boundaries alone do not reach it"


def test_what_stands_often_is_no_place() -> None:
    often, code = as_tokens([7, 8, 9]), distinct(600, 1) + 10
    parts = [np.concatenate([code[i : i + 60], often]) for i in range(0, 600, 60)]
    shown = np.concatenate(parts)
    plan = plan_prompt(np.concatenate([shown, often]), 0, [span(0, len(shown))], COPY)
    assert plan is not None
    assert plan.recompute.tolist() == list(range(16)), "nothing but the boundary"


def test_what_is_asked_last_counts_most() -> None:
    code = distinct(2000, 2)
    early, late = code[500:506], code[1500:1506]
    tokens = np.concatenate([code, early, distinct(2400, 3)[2000:] + 200_000, late])
    plan = plan_prompt(tokens, 0, [span(0, 2000)], replace(COPY, budget=0.03))
    assert plan is not None
    chosen = set(plan.recompute.tolist())
    assert len(chosen & set(range(1500, 1560))) > len(chosen & set(range(500, 560)))


@pytest.mark.parametrize("count", [1, 2])
def test_a_prompt_that_asks_nothing_spends_all_on_boundaries(count: int) -> None:
    tokens = distinct(400 + count)
    spans = [span(0, 200), span(200, 400)]
    plan = plan_prompt(tokens, 0, spans, COPY)
    assert plan is not None
    assert plan.recompute.tolist() == [*range(16), *range(200, 216)], "as many as a boundary may have"
    more = plan_prompt(tokens, 0, spans, replace(COPY, boundary_tokens=512))
    assert more is not None
    assert more.recompute.tolist() == [*range(20), *range(200, 220)], "as far as the budget goes"
