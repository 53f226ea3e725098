"""The scheduler half's books: what became of each agent's request, sent on in the step in which it ends.

admitted ─▶ (first token) ─▶ finished ─▶ loaded (what its load took, reported in the same step) ─▶ take
"""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from agentcache.entry import as_tokens
from agentcache.observe.prompts import Parting, Prompts
from agentcache.plugin.messages import Blended, RequestRecord, SpanRecord
from agentcache.settings import POLICY_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from vllm.v1.request import Request

    from agentcache.entry import Tokens
    from agentcache.plan.types import Plan
    from agentcache.plugin.request import Wish

MAX_SPANS = 512
"""Spans of one request that are kept by place; all are counted."""
_TIERS_S = 2.0
"""How often the tiers' sizes are sent."""
_MAX_SAMPLES = 4


@dataclass(slots=True)
class _Open:
    """A request that has been admitted. first_token_at: seconds since the epoch, None before it"""

    request: Request
    wish: Wish
    admitted_at: float
    parting: Parting | None
    first_token_at: float | None = None


class Account:
    """All methods run on the scheduler's thread.

    share: of the blended requests whose prompts are sent on, to be repeated (`agentcache.plugin.shadow`)
    tiers: asked for the tiers' bytes now and then, None where there is no store
    """

    def __init__(self, share: float = 0.0, tiers: Callable[[], dict[str, Any]] | None = None) -> None:
        self.tiers = tiers
        self.reasons: Counter[str] = Counter()
        self._share = share
        self._random = random.Random()
        self._prompts = Prompts()
        self._open: dict[str, _Open] = {}
        self._unanswered: dict[str, _Open] = {}
        self._records: dict[str, RequestRecord] = {}
        self._samples: list[dict[str, Any]] = []
        self._tiers_at = float("-inf")

    def admitted(self, request: Request, wish: Wish, tokens: Tokens) -> None:
        """For the first time. It is compared with earlier prompts of its own page namespace. tokens: its prompt"""
        namespace = wish.page_namespace
        pages = request.block_hashes[: len(tokens)]
        parting = self._prompts.parting(tokens, pages, namespace)
        self._prompts.keep(request.request_id, tokens, pages, namespace)
        opened = _Open(request, wish, time.time(), parting)
        self._open[request.request_id] = self._unanswered[request.request_id] = opened

    def claim(self, request: Request, num_reused: int) -> None:
        """Have vLLM report, as `cached_tokens`, what is neither computed nor recomputed: not all that we fill in."""
        stats = getattr(request, "prefill_stats", None)
        if stats is not None:
            cached = stats.num_local_cached_tokens
            stats.set(stats.num_prompt_tokens, cached, min(num_reused, stats.num_prompt_tokens - cached))

    def step(self) -> None:
        """A step begins: who has been answered in the last one?"""
        for name, opened in list(self._unanswered.items()):
            self._look(name, opened)

    def _look(self, name: str, opened: _Open) -> None:
        if opened.request.num_output_tokens:
            opened.first_token_at = time.time()
            del self._unanswered[name]

    def finished(self, record: RequestRecord, plan: Plan | None, took: Blended | None) -> RequestRecord:
        """An admitted request is over. Returns its record with its times, for the worker half.

        record, plan: what was planned for it; took: what its load took, None where that is not known yet
        """
        name = record.request_id
        opened = self._open.pop(name, None)
        if opened is None:
            return record
        request = opened.request
        if name in self._unanswered:
            self._look(name, opened)
            self._unanswered.pop(name, None)
        if request.num_output_tokens:
            self._prompts.answered(name, as_tokens(request.output_token_ids), request.block_hashes)
        first = opened.first_token_at
        record = replace(
            record,
            arrived_at=request.arrival_time,
            queue_s=max(0.0, opened.admitted_at - request.arrival_time),
            ttft_s=None if first is None else max(0.0, first - request.arrival_time),
            output_tokens=request.num_output_tokens,
        )
        whole = replace(
            record,
            placed=spans_of(plan, record.prompt_tokens),
            parting=opened.parting,
            trace_headers=request.trace_headers,
        )
        self._records[name] = whole.with_load(took) if took is not None else whole
        if record.fallback:
            self.reasons[record.fallback] += 1
        if self._share and record.reused_tokens and self._random.random() < self._share:
            self._sample(record, opened)
        return record

    def _sample(self, record: RequestRecord, opened: _Open) -> None:
        """Have it repeated: its token ids leave this process, not this machine."""
        if record.ttft_s is None:
            return
        del self._samples[: len(self._samples) + 1 - _MAX_SAMPLES]
        self._samples.append(
            {
                "tokens": list(opened.request.prompt_token_ids or ()),
                "salt": opened.wish.salt,
                "policy": {name: getattr(opened.wish.policy, name) for name in POLICY_NAMES},
                "prefix_hit": record.prefix_hit_tokens,
                "prefill_s": record.ttft_s - record.queue_s,
            }
        )

    def loaded(self, blended: Mapping[str, Blended], reasons: Mapping[str, int]) -> None:
        """The worker half's report of a step: requests that end with it get what their loads took."""
        self.reasons.update(reasons)
        for name, took in blended.items():
            if name in self._records:
                self._records[name] = self._records[name].with_load(took)

    def take(self, blending: bool = True) -> dict[str, Any] | None:
        """What is new since the last call, ready for JSON; None if nothing is. blending: whether that is on now"""
        now = time.monotonic()
        if not (self._records or self.reasons or self._samples) and now - self._tiers_at < _TIERS_S:
            return None
        news: dict[str, Any] = {
            "requests": [record.to_dict() for record in self._records.values()],
            "reasons": dict(self.reasons),
            "samples": self._samples,
            "tiers": {},
            "blending": blending,
        }
        if self.tiers is not None and now - self._tiers_at >= _TIERS_S:
            self._tiers_at, news["tiers"] = now, self.tiers()
        self._records, self._samples = {}, []
        self.reasons.clear()
        return news


def spans_of(plan: Plan | None, prompt: int) -> tuple[SpanRecord, ...]:
    """Where a plan reuses what, in the prompt's first `prompt` positions; at most MAX_SPANS."""
    if plan is None:
        return ()
    spans = [span for span in plan.spans[:MAX_SPANS] if span.start < prompt]
    bounds = np.array([(span.start, min(span.stop, prompt)) for span in spans], np.int64).reshape(-1, 2)
    recomputed = np.diff(np.searchsorted(plan.recompute, bounds), axis=1)[:, 0]
    return tuple(
        SpanRecord(start, stop, span.entry, count)
        for span, (start, stop), count in zip(spans, bounds.tolist(), recomputed.tolist(), strict=True)
    )
