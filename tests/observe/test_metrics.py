"""Metrics from records, without an engine: what is counted, how often, and that nothing grows without bound."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import REGISTRY, Counter, Gauge, Histogram, generate_latest

from agentcache.observe.log import RequestLog
from agentcache.plugin import frontend
from agentcache.plugin.metrics import Metrics
from tests.observe.metrics_text import names_in, names_in_dashboard, value_of


@pytest.fixture
def metrics(monkeypatch: pytest.MonkeyPatch) -> Metrics:
    monkeypatch.setattr(frontend, "LOG", RequestLog())
    monkeypatch.setattr(frontend, "METRICS", None)
    config: Any = SimpleNamespace(kv_transfer_config=None)
    types = {Counter: Counter, Gauge: Gauge, Histogram: Histogram}
    return Metrics(config, types, ["model_name", "engine"], {0: ["m", "0"]})


def news(*records: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"requests": list(records), "reasons": {}, "samples": [], "tiers": {}, "blending": True, **more}


def record(**changes: Any) -> dict[str, Any]:
    return {
        "request_id": "r",
        "mode": "fast",
        "prompt_tokens": 100,
        "prefix_hit_tokens": 10,
        "reused_tokens": 60,
        "recomputed_tokens": 20,
        "computed_tokens": 10,
        "spans": 2,
        "fallback": "",
        "load_s": 0.01,
        "recompute_s": 0.02,
        "ttft_s": 0.3,
        "queue_s": 0.1,
        "placed": [],
        "parting": None,
        **changes,
    }


def text() -> str:
    return generate_latest(REGISTRY).decode()


def test_tokens_are_counted_by_kind_and_add_up(metrics: Metrics) -> None:
    metrics.observe(news(record(), record()))
    kinds = {"prefix_hit": 20.0, "reused": 120.0, "recomputed": 40.0, "computed": 20.0}
    for kind, count in kinds.items():
        assert value_of(text(), "agentcache_prompt_tokens_total", kind=kind) == count
    assert value_of(text(), "agentcache_prompt_tokens_total") == 200
    assert value_of(text(), "agentcache_requests_total", mode="fast", found="reused") == 2
    assert value_of(text(), "agentcache_load_seconds_sum") == pytest.approx(0.02)
    assert value_of(text(), "agentcache_time_to_first_token_seconds_count") == 2


def test_what_did_not_happen_is_not_observed(metrics: Metrics) -> None:
    metrics.observe(
        news(record(ttft_s=None, reused_tokens=0, recomputed_tokens=0, computed_tokens=90, spans=0))
    )
    assert value_of(text(), "agentcache_time_to_first_token_seconds_count") == 0
    assert value_of(text(), "agentcache_load_seconds_count") == 0
    assert value_of(text(), "agentcache_requests_total", found="prefix") == 1


def test_a_reason_is_a_label_without_its_details(metrics: Metrics) -> None:
    reasons = {f"bad parameters: unknown agentcache parameter {n}": 1 for n in range(50)} | {"LoRA": 2}
    metrics.observe(news(reasons=reasons))
    assert value_of(text(), "agentcache_fallbacks_total", reason="bad parameters") == 50
    assert value_of(text(), "agentcache_fallbacks_total", reason="LoRA") == 2
    assert text().count("agentcache_fallbacks_total{") <= 3


def test_gauges_follow_and_a_queue_that_is_empty_says_so(metrics: Metrics) -> None:
    metrics.observe(news(tiers={"ram": {"bytes": 7, "budget_bytes": 9}}, blending=False))
    metrics.warmth(10, 4, {"edit": 3})
    assert value_of(text(), "agentcache_tier_bytes", tier="ram") == 7
    assert value_of(text(), "agentcache_blending") == 0
    assert value_of(text(), "agentcache_warm_queue", urgency="edit") == 3
    assert value_of(text(), "agentcache_blocks", state="cold") == 6
    metrics.warmth(10, 10, {})
    assert value_of(text(), "agentcache_warm_queue", urgency="edit") == 0


def test_a_second_engine_in_one_process_takes_the_place_of_the_first(metrics: Metrics) -> None:
    metrics.observe(news(record()))
    types = {Counter: Counter, Gauge: Gauge, Histogram: Histogram}
    Metrics(SimpleNamespace(kv_transfer_config=None), types, ["model_name", "engine"], {0: ["n", "0"]})  # type: ignore[arg-type]
    assert value_of(text(), "agentcache_prompt_tokens_total") == 0


def test_the_dashboard_draws_nothing_that_is_not_there(metrics: Metrics) -> None:
    wanted = names_in_dashboard()
    assert len(wanted) > 15
    assert wanted - names_in(text()) == set()
