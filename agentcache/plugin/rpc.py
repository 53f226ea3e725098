"""RPC methods on vLLM's workers, called by the routes through `collective_rpc`. `METHODS` is what is added to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

STATUS = "agentcache_status"
MISSING = "agentcache_missing"
SELFTEST = "agentcache_selftest"


def _status(self: Any) -> dict[str, Any]:
    """The worker half's counters (empty before the connector exists)."""
    from agentcache.plugin import process

    return process.WORKER.status() if process.WORKER is not None else {}


def _missing(self: Any, entry_ids: list[str]) -> list[str]:
    """Those of `entry_ids` that cannot be served."""
    from agentcache.plugin import process

    return process.WORKER.missing(entry_ids) if process.WORKER is not None else list(entry_ids)


def _selftest(self: Any) -> dict[str, Any]:
    """Whether blending works here. Runs between two steps, on borrowed pages."""
    from agentcache.plugin import process
    from agentcache.settings import EngineSettings

    if process.WORKER is None:
        return {"ok": False, "reason": "no connector", "tokens": 0, "checks": []}
    config = process.RUNNER.vllm_config
    settings = EngineSettings.from_dict(dict(config.kv_transfer_config.kv_connector_extra_config))
    model = config.model_config
    return process.WORKER.selftest(str(model.tokenizer), int(model.max_model_len), settings.policy)


METHODS: dict[str, Callable[..., Any]] = {STATUS: _status, MISSING: _missing, SELFTEST: _selftest}
