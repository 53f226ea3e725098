"""A trace against the real engine: what is measured is what the engine says it did."""

from __future__ import annotations

import inspect
import textwrap
from pathlib import Path

import pytest

from agentcache.replay.live import Pair, run_live, summary
from tests.engine.serving import PAGE_SIZE, Server, learning
from tests.replay.conftest import CODE, chat_request


@pytest.mark.engine
def test_a_trace_is_measured_fast_and_exact(server: Server, folder: Path) -> None:
    stored = inspect.getsource(textwrap)[:1500]
    asked = [
        f"A first question about this file.\n{stored}\n{CODE}\nWhat is it for?",
        f"Another one, and it begins in another way:\n{CODE}\n{stored}\nAnd now?",
        "far too long " * 5000,
    ]
    requests = [chat_request(i, [{"role": "user", "content": text}]) for i, text in enumerate(asked)]
    with learning(server, str(folder)):
        run = run_live(server.client, requests, folder)
    assert [pair.number for pair in run.pairs] == [0, 1]
    assert run.skipped == 1
    assert run.mismatched == 0
    first, second = run.pairs
    assert first.exact.reused_tokens == second.exact.reused_tokens == 0
    assert first.fast.reused_tokens > 200  # stored by the fixture
    # the code in front was not stored: the worker has learned it from the first request, between the two
    assert run.unsettled == 0
    assert second.fast.reused_tokens > first.fast.reused_tokens + 60
    result = summary(run)
    assert result["learned_tokens"] > 100
    assert result["requests"] == 2
    assert not result["interrupted"]
    assert result["fast"]["reused_share"] > 0
    assert result["exact"]["reused_share"] == 0
    assert result["ttft_ratio_median"] > 0
    assert result["ttft_ratio_again_median"] > 0
    pages = [(pair.exact.prompt_tokens - 1) // PAGE_SIZE * PAGE_SIZE for pair in run.pairs]
    assert [pair.again.prefix_hit_tokens for pair in run.pairs] == pages


@pytest.mark.engine
def test_ctrl_c_ends_it_with_what_was_measured(server: Server, folder: Path) -> None:
    requests = [chat_request(i, [{"role": "user", "content": f"Question {i}?"}]) for i in range(3)]

    def interrupt(pair: Pair) -> None:
        raise KeyboardInterrupt

    run = run_live(server.client, requests, folder, on_pair=interrupt)
    assert len(run.pairs) == 1
    assert summary(run)["interrupted"]
