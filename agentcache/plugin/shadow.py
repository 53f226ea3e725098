"""The drift watch: repeats sampled requests in idle time, as they were served and as `exact`, and compares.

It runs on the API server's event loop and asks its own engine; a prompt's tokens never leave the machine. A repetition
begins when no agent's request runs, computes a fraction of a second at a time, and is in nobody's way in between.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from agentcache.engine_client import WARM_PRIORITY
from agentcache.observe.drift import Drift, Sample
from agentcache.plugin import frontend
from agentcache.plugin.rpc import PAUSE
from agentcache.quality.top import top_kl

if TYPE_CHECKING:
    from vllm.engine.protocol import EngineClient

    from agentcache.plugin.traffic import Traffic
    from agentcache.settings import EngineSettings

logger = logging.getLogger("vllm.agentcache")
_TOP: Final = 20
_LOOK_S: Final = 0.25
_IDLE_S: Final = 0.5
"""No agent's request for so long: idle."""
_STEP_S: Final = 0.5
_FIRST_STEP: Final = 512
"""Tokens; later steps are what the engine computes in `_STEP_S`."""
_LONGEST_WAIT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class _First:
    """A prompt's first token. logprobs: the top ones, by token id; cached: prompt tokens that were not computed"""

    logprobs: dict[str, float]
    cached: int
    seconds: float


class Shadow:
    """One an API server. `run` ends when it is cancelled, or once the drift is too far."""

    def __init__(self, engine: EngineClient, traffic: Traffic, settings: EngineSettings) -> None:
        self.share = settings.shadow
        self.drift = Drift(settings.shadow_max_kl, settings.shadow_min_samples)
        self.failed = 0
        self._engine, self._traffic = engine, traffic
        self._numbers = count()
        self._step_tokens = _FIRST_STEP

    def to_dict(self) -> dict[str, Any]:
        """For the status."""
        waiting = len(frontend.SAMPLES)
        return {"share": self.share, "waiting": waiting, "failed": self.failed, **self.drift.to_dict()}

    async def run(self) -> None:
        while not self.drift.tripped:
            await self._idle()
            if not frontend.SAMPLES:
                await asyncio.sleep(_LOOK_S)
                continue
            sample = frontend.SAMPLES.popleft()
            try:
                await self._watch(sample)
            except asyncio.CancelledError:
                raise
            except Exception as error:
                self.failed += 1
                logger.info(
                    "agentcache: a request could not be repeated: %s: %s", type(error).__name__, error
                )
                await asyncio.sleep(_LOOK_S)

    async def _idle(self) -> None:
        """Return when no agent's request runs, nor has just now."""
        while True:
            now = self._traffic.to_dict()
            if not now["running"] and (now["idle_s"] is None or now["idle_s"] >= _IDLE_S):
                return
            if now["running"]:
                await self._traffic.wait(_LONGEST_WAIT_S)
            else:
                await asyncio.sleep(_LOOK_S)

    async def _watch(self, sample: dict[str, Any]) -> None:
        fast = await self._first(sample, len(sample["tokens"]), "fast")
        exact = await self._exact(sample)
        kl = top_kl(exact.logprobs, fast.logprobs)
        agrees = max(exact.logprobs, key=exact.logprobs.__getitem__) == max(
            fast.logprobs, key=fast.logprobs.__getitem__
        )
        if frontend.METRICS is not None:
            frontend.METRICS.shadow(kl, agrees)
        if self.drift.add(Sample(kl, agrees, sample["prefill_s"], _as_served(sample, exact))):
            await self._end_blending()

    async def _exact(self, sample: dict[str, Any]) -> _First:
        """A full prefill, a step at a time, each going on from the pages of the one before."""
        size = len(sample["tokens"])
        seconds, cached = 0.0, None
        stop = 0
        while stop < size:
            await self._idle()
            stop = min(size, stop + self._step_tokens)
            first = await self._first(sample, stop, "exact")
            seconds += first.seconds
            cached = first.cached if cached is None else cached
            computed = stop - first.cached
            if stop < size and computed > 0:
                rate = computed / max(first.seconds, 1e-3)
                self._step_tokens = max(_FIRST_STEP // 4, int(rate * _STEP_S))
        return _First(first.logprobs, cached or 0, seconds)

    async def _first(self, sample: dict[str, Any], stop: int, mode: str) -> _First:
        from vllm import SamplingParams

        wish = {"mode": mode, "quiet": True, **sample["policy"]}
        params = SamplingParams(
            max_tokens=1,
            temperature=0.0,
            logprobs=_TOP,
            extra_args={"kv_transfer_params": {"agentcache": wish}},
        )
        prompt: Any = {"prompt_token_ids": sample["tokens"][:stop]}
        if sample["salt"]:
            prompt["cache_salt"] = sample["salt"]
        name = f"agentcache-shadow-{next(self._numbers)}"
        began = time.monotonic()
        answers = [one async for one in self._engine.generate(prompt, params, name, priority=WARM_PRIORITY)]
        answer = answers[-1]
        assert answer.outputs[0].logprobs is not None
        first = answer.outputs[0].logprobs[0]
        logprobs = {str(token): one.logprob for token, one in first.items()}
        return _First(logprobs, answer.num_cached_tokens or 0, time.monotonic() - began)

    async def _end_blending(self) -> None:
        reason = self.drift.tripped
        logger.warning("agentcache: blending is off until restart: %s", reason)
        await self._engine.collective_rpc(PAUSE, args=(reason,))
        if frontend.METRICS is not None:
            frontend.METRICS.blending(False)


def _as_served(sample: dict[str, Any], exact: _First) -> float | None:
    """What an exact prefill would have taken with the prefix hit that the request had; None if too little was computed
    to tell."""
    size = len(sample["tokens"])
    computed = size - exact.cached
    if 2 * computed < size:
        return None
    share: float = (size - sample["prefix_hit"]) / computed
    return exact.seconds * share
