"""Prometheus metrics of ours on vLLM's own `/metrics`: created and labelled as vLLM creates and labels its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from prometheus_client import REGISTRY, Counter, Gauge, Histogram
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics

from agentcache.plugin import frontend

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vllm.config import VllmConfig

TOKEN_KINDS: Final = ("prefix_hit", "reused", "recomputed", "computed")
_PREFIX: Final = "agentcache_"
_FAST: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60)
_SLOW: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300)
_KL: Final = (0.0001, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10)


class Metrics(KVConnectorPromMetrics):
    """One in the API server's process. `observe` is called with what the scheduler half sends."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        _unregister()  # of an engine that this process had before
        self._make = dict(metric_types)
        self._requests = self._counter(
            "requests", "Answered requests, by mode and by what their prompts found.", "mode", "found"
        )
        self._tokens = self._counter("prompt_tokens", "Prompt tokens of answered requests.", "kind")
        self._fallbacks = self._counter("fallbacks", "What kept spans from being reused.", "reason")
        self._breaks = self._counter("prefix_breaks", "Prompts that parted from an earlier one.", "cause")
        self._load = self._histogram("load_seconds", "Loading entries into pages, a request.", _FAST)
        self._recompute = self._histogram("recompute_seconds", "Virtual requests, a request.", _FAST)
        self._ttft = self._histogram("time_to_first_token_seconds", "Arrival to first token.", _SLOW, "mode")
        self._queue = self._histogram("queue_seconds", "Arrival to admission.", _SLOW)
        self._tier = self._gauge("tier_bytes", "Bytes in a tier of the entry store.", "tier")
        self._budget = self._gauge("tier_budget_bytes", "What a tier may hold.", "tier")
        self._warm_queue = self._gauge("warm_queue", "Jobs that wait to be warmed, by class.", "urgency")
        self._blocks = self._gauge("blocks", "Different blocks of the indexed repositories.", "state")
        self._blending = self._gauge("blending", "1 while requests are blended, 0 once that is off.")
        self._shadow_kl = self._histogram("shadow_kl", "KL of blended against exact, a sample.", _KL)
        self._shadow_agrees = self._counter(
            "shadow_samples", "Repeated requests, by whether the first token is the same.", "agrees"
        )
        self._queues_seen: set[str] = set()
        self._zero()
        frontend.METRICS = self

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        frontend.receive(transfer_stats_data)
        for record in transfer_stats_data["requests"]:
            self._observe_request(record, engine_idx)
        for reason, count in transfer_stats_data["reasons"].items():
            self._of(self._fallbacks, engine_idx, _kind_of(reason)).inc(count)
        self.blending(transfer_stats_data["blending"])
        for tier, sizes in transfer_stats_data["tiers"].items():
            self._of(self._tier, engine_idx, tier).set(sizes["bytes"])
            self._of(self._budget, engine_idx, tier).set(sizes["budget_bytes"])

    def _observe_request(self, record: Mapping[str, Any], engine: int) -> None:
        self._of(self._requests, engine, record["mode"], found(record)).inc()
        for kind in TOKEN_KINDS:
            self._of(self._tokens, engine, kind).inc(record[f"{kind}_tokens"])
        if record["spans"]:
            self._of(self._load, engine).observe(record["load_s"])
            self._of(self._recompute, engine).observe(record["recompute_s"])
        if record["ttft_s"] is not None:
            self._of(self._ttft, engine, record["mode"]).observe(record["ttft_s"])
        self._of(self._queue, engine).observe(record["queue_s"])
        if record["broken"] is not None:
            self._of(self._breaks, engine, record["broken"]["cause"]).inc()

    def warmth(self, blocks: int, warm: int, queue: Mapping[str, int]) -> None:
        """What the warm worker has told. It is one worker for all engines: told as the first one's."""
        self._of(self._blocks, None, "warm").set(warm)
        self._of(self._blocks, None, "cold").set(max(0, blocks - warm))
        for urgency in self._queues_seen | set(queue):
            self._of(self._warm_queue, None, urgency).set(queue.get(urgency, 0))
        self._queues_seen |= set(queue)

    def blending(self, on: bool) -> None:
        """Whether requests are blended, as far as the API server knows."""
        self._of(self._blending, None).set(int(on))

    def shadow(self, kl: float, agrees: bool) -> None:
        """One request was repeated as `exact`."""
        self._of(self._shadow_kl, None).observe(kl)
        self._of(self._shadow_agrees, None, "yes" if agrees else "no").inc()

    # making them

    def _counter(self, name: str, text: str, *labels: str) -> Any:
        return self._make[Counter](_PREFIX + name, text, labelnames=[*self._labelnames, *labels])

    def _histogram(self, name: str, text: str, buckets: Sequence[float], *labels: str) -> Any:
        return self._make[Histogram](
            _PREFIX + name, text, buckets=buckets, labelnames=[*self._labelnames, *labels]
        )

    def _gauge(self, name: str, text: str, *labels: str) -> Any:
        return self._make[Gauge](
            _PREFIX + name,
            text,
            multiprocess_mode="mostrecent",
            labelnames=[*self._labelnames, *labels],
        )

    def _of(self, metric: Any, engine: int | None, *labels: str) -> Any:
        which = min(self.per_engine_labelvalues) if engine is None else engine
        return metric.labels(*self.per_engine_labelvalues[which], *labels)

    def _zero(self) -> None:
        """Show what has not happened yet as 0, so that rates and dashboards have a beginning."""
        for engine in self.per_engine_labelvalues:
            for kind in TOKEN_KINDS:
                self._of(self._tokens, engine, kind)
            for what in ("reused", "prefix", "nothing"):
                self._of(self._requests, engine, "fast", what)
            for histogram in (self._load, self._recompute, self._queue):
                self._of(histogram, engine)
            self._of(self._ttft, engine, "fast")
            self._of(self._fallbacks, engine, "entry missing")
            self._of(self._breaks, engine, "text")
            for gauge in (self._tier, self._budget):
                self._of(gauge, engine, "ram")
        self._of(self._shadow_kl, None)
        self._of(self._shadow_agrees, None, "yes")
        self._of(self._warm_queue, None, "edit")
        self.warmth(0, 0, {})
        self.blending(True)


def found(record: Mapping[str, Any]) -> str:
    """What a prompt found: `reused` entries, at least a `prefix` in vLLM's cache, or `nothing`."""
    if record["reused_tokens"]:
        return "reused"
    return "prefix" if record["prefix_hit_tokens"] else "nothing"


def _kind_of(reason: str) -> str:
    """A reason without its details: labels must be few."""
    return reason.partition(":")[0][:60]


def _unregister() -> None:
    for collector in list(REGISTRY._collector_to_names):
        if getattr(collector, "_name", "").startswith(_PREFIX):
            REGISTRY.unregister(collector)
