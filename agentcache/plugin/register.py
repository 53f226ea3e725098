"""vLLM general plug-in: runs in every vLLM process. Learns the model runner and adds our RPC methods to workers.

Nothing of vLLM is replaced: `initialize_kv_cache` is observed (its runner is remembered, then it runs as it was).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from agentcache.plugin.rpc import METHODS

_OBSERVED = "_agentcache_observed"


def register() -> None:
    """Entry point `vllm.general_plugins`; may be called more than once a process."""
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner as RunnerV2
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner as RunnerV1
    from vllm.v1.worker.worker_base import WorkerBase

    for runner_class in (RunnerV1, RunnerV2):
        if not hasattr(runner_class.initialize_kv_cache, _OBSERVED):
            runner_class.initialize_kv_cache = _observed(runner_class.initialize_kv_cache)
    for name, method in METHODS.items():
        setattr(WorkerBase, name, method)


def _observed(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def initialize_kv_cache(self: Any, *args: Any, **kwargs: Any) -> Any:
        from agentcache.plugin import process

        process.RUNNER = self
        return original(self, *args, **kwargs)

    setattr(initialize_kv_cache, _OBSERVED, True)
    return initialize_kv_cache
