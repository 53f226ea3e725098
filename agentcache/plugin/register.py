"""vLLM general plug-in: runs in every vLLM process. Learns the model runner and adds three RPC methods to workers.

Nothing of vLLM is replaced: `initialize_kv_cache` is observed (its runner is remembered, then it runs as it was).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

STATUS_RPC = "agentcache_status"
MISSING_RPC = "agentcache_missing"
SELFTEST_RPC = "agentcache_selftest"
_OBSERVED = "_agentcache_observed"


def register() -> None:
    """Entry point `vllm.general_plugins`; may be called more than once a process."""
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner as RunnerV2
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner as RunnerV1
    from vllm.v1.worker.worker_base import WorkerBase

    for runner_class in (RunnerV1, RunnerV2):
        if not hasattr(runner_class.initialize_kv_cache, _OBSERVED):
            runner_class.initialize_kv_cache = _observed(runner_class.initialize_kv_cache)
    setattr(WorkerBase, STATUS_RPC, _status)
    setattr(WorkerBase, MISSING_RPC, _missing)
    setattr(WorkerBase, SELFTEST_RPC, _selftest)


def _observed(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def initialize_kv_cache(self: Any, *args: Any, **kwargs: Any) -> Any:
        from agentcache.plugin import process

        process.RUNNER = self
        return original(self, *args, **kwargs)

    setattr(initialize_kv_cache, _OBSERVED, True)
    return initialize_kv_cache


def _status(self: Any) -> dict[str, Any]:
    """RPC on a worker: the worker half's counters (empty before the connector exists)."""
    from agentcache.plugin import process

    return process.WORKER.status() if process.WORKER is not None else {}


def _missing(self: Any, entry_ids: list[str]) -> list[str]:
    """RPC on a worker: those of `entry_ids` that cannot be served."""
    from agentcache.plugin import process

    return process.WORKER.missing(entry_ids) if process.WORKER is not None else list(entry_ids)


def _selftest(self: Any) -> dict[str, Any]:
    """RPC on a worker: whether blending works here. Runs between two steps, on borrowed pages."""
    from agentcache.plugin import process
    from agentcache.settings import EngineSettings

    if process.WORKER is None:
        return {"ok": False, "reason": "no connector", "tokens": 0, "checks": []}
    config = process.RUNNER.vllm_config
    settings = EngineSettings.from_dict(dict(config.kv_transfer_config.kv_connector_extra_config))
    model = config.model_config
    return process.WORKER.selftest(str(model.tokenizer), int(model.max_model_len), settings.policy)
