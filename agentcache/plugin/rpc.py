"""RPC methods on vLLM's workers, called by the routes through `collective_rpc`. `METHODS` is what is added to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

STATUS = "agentcache_status"
MISSING = "agentcache_missing"
SELFTEST = "agentcache_selftest"
TOUCHED = "agentcache_touched"
DROP = "agentcache_drop"
NOTES = "agentcache_notes"
EXPECT = "agentcache_expect"
WEIGH = "agentcache_weigh"
PAUSE = "agentcache_pause"


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


def _notes(self: Any) -> dict[str, Any]:
    """What requests left to learn since the last call."""
    from agentcache.plugin import process

    return process.WORKER.take_notes() if process.WORKER is not None else {"notes": [], "noted": 0}


def _expect(self: Any, texts: list[list[int]], salt: str) -> bool:
    """Note texts as if they had been generated; False if nobody may ask for notes."""
    from agentcache.plugin import process
    from agentcache.settings import worker_key

    if process.WORKER is None or not worker_key():
        return False
    process.WORKER.expect(texts, salt)
    return True


def _weigh(self: Any, weights: dict[str, float]) -> None:
    """Say how likely entries are to be read, for eviction alone."""
    from agentcache.plugin import process

    if process.WORKER is not None:
        process.WORKER.weigh(weights)


def _touched(self: Any, after: int) -> dict[str, Any]:
    """What agents' requests reused."""
    from agentcache.plugin import process

    return process.WORKER.touched(after) if process.WORKER is not None else {"last": 0, "requests": []}


def _pause(self: Any, reason: str) -> None:
    """End blending until restart."""
    from agentcache.plugin import process

    if process.WORKER is not None:
        process.WORKER.pause(reason)


def _drop(self: Any, entry_ids: list[str]) -> None:
    """Delete entries."""
    from agentcache.plugin import process

    if process.WORKER is not None:
        process.WORKER.drop(entry_ids)


METHODS: dict[str, Callable[..., Any]] = {
    STATUS: _status,
    MISSING: _missing,
    SELFTEST: _selftest,
    TOUCHED: _touched,
    DROP: _drop,
    NOTES: _notes,
    EXPECT: _expect,
    WEIGH: _weigh,
    PAUSE: _pause,
}
