"""Strategies that spend a budget on scores, on the real model in float32."""

from __future__ import annotations

import time

import pytest

from tests.engine.serving import Answer, Server, largest_difference

pytestmark = pytest.mark.engine

MATCHED = 1800


def test_the_whole_budget_equals_full_prefill(
    server: Server, plain: dict[str, Answer], prompts: dict[str, list[int]]
) -> None:
    """With a budget of everything the scores choose all, whatever they are; what they read and ran leaves no trace."""
    answer = server.ask(
        prompts["shuffled"], salt="deviation 1", strategy="deviation", budget=1.0, min_saved_tokens=0
    )
    assert answer.counters["recomputed_tokens"] == MATCHED
    assert answer.tokens == plain["shuffled"].tokens
    assert largest_difference(answer.first, plain["shuffled"].first) < 1e-3


@pytest.mark.parametrize("strategy", ["deviation", "boundary+tail", "boundary+copy"])
def test_a_budget_is_spent_and_helps(
    server: Server, plain: dict[str, Answer], prompts: dict[str, list[int]], strategy: str
) -> None:
    reference = plain["shuffled"].first
    none = server.ask(prompts["shuffled"], salt=f"{strategy} none", strategy="none")
    some = server.ask(
        prompts["shuffled"], salt=f"{strategy} some", strategy=strategy, budget=0.2, boundary_tokens=512
    )
    assert some.counters["recomputed_tokens"] == int(0.2 * MATCHED)
    assert some.counters["reused_tokens"] == MATCHED - int(0.2 * MATCHED)
    assert largest_difference(some.first, reference) < largest_difference(none.first, reference)
    assert server.status()["blending"], "the breaker has not tripped"


def test_a_request_of_one_token_is_counted_as_it_was_loaded(
    server: Server, prompts: dict[str, list[int]]
) -> None:
    """It ends in the step of its load, before the engine has told what the load took."""
    before = server.status()["totals"]
    server.ask(prompts["shuffled"], salt="one", whole_vocabulary=True, strategy="deviation", budget=0.2)
    deadline = time.monotonic() + 10
    while (now := server.status())["totals"]["requests"] == before["requests"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    record = now["recent"][-1]
    assert record["recomputed_tokens"] == int(0.2 * MATCHED)
    assert record["recompute_s"] > 0


def test_a_strategy_with_scores_needs_a_budget(server: Server, prompts: dict[str, list[int]]) -> None:
    answer = server.ask(prompts["shuffled"], salt="no budget", strategy="deviation", budget=None)
    assert answer.counters["fallback"] == "bad parameters: strategy 'deviation' needs a budget"
    assert answer.counters["reused_tokens"] == 0
