"""How much one step may recompute: the scheduler half alone, with vLLM's own requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentcache.entry import INDEX_DOMAIN, as_tokens, entries_of_stream
from agentcache.settings import EngineSettings

pytestmark = pytest.mark.engine
MODEL = "ab" * 32
PAGE = 16


def request_of(number: int, prompt: list[int]) -> Any:
    from vllm import SamplingParams
    from vllm.v1.request import Request

    return Request(f"r{number}", prompt, SamplingParams(max_tokens=4), None)


@settings(max_examples=40, deadline=None)
@given(
    budget=st.integers(16, 400),
    holes=st.lists(st.integers(0, 300), min_size=1, max_size=8),
    strategy=st.sampled_from(
        [{}, {"strategy": "deviation", "budget": 0.3}, {"strategy": "all", "min_saved_tokens": 0}]
    ),
)
def test_no_step_recomputes_more_than_its_budget_or_one_request(
    budget: int, holes: list[int], strategy: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    from agentcache.plugin.scheduler import SchedulerHalf

    random = np.random.default_rng(0)
    stored = random.integers(0, 1000, 200).tolist()
    half = SchedulerHalf(EngineSettings(store_dir=str(Path("unused"))), MODEL, PAGE, "")
    half.step_tokens = budget
    for info in entries_of_stream(MODEL, INDEX_DOMAIN, as_tokens(stored), [0, 120, 200]):
        half.learn(info)
    waiting = []
    for number, hole in enumerate(holes):
        fresh = random.integers(1000, 2000, hole + 3).tolist()
        request = request_of(number, fresh + stored + [7, 8])
        request.kv_transfer_params = {"agentcache": strategy}
        half.add(request)
        waiting.append(request)
    steps = 0
    while waiting:
        left = []
        for request in waiting:
            claimed = half.match(request, 0)
            if claimed is None:
                left.append(request)
                continue
            half.admitted(request, tuple(range(1, 2 + request.num_tokens // PAGE)), claimed)
        loads = half.take_loads().loads
        sizes = [
            len(op.plan.recompute)
            + (int(op.budget * op.plan.num_matched) if op.strategy == "deviation" else 0)
            for op in loads
        ]
        assert loads, "somebody is served in every step"
        assert sum(sizes) <= budget or len(loads) == 1
        waiting, steps = left, steps + 1
    assert steps <= len(holes)
