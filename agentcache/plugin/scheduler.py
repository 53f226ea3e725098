"""The scheduler half: for every request, match its prompt, plan, claim the planned tokens, and account for them."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from vllm.v1.request import RequestStatus

from agentcache.entry import EntryInfo, Tokens, as_tokens, entries_of_stream
from agentcache.learn.note import Note
from agentcache.learn.runs import MIN_TOKENS, mask_of, runs_to_learn, stride_of
from agentcache.match import Matcher
from agentcache.plan import STRATEGIES, RecomputePolicy, make_plan, plan_prompt
from agentcache.plan.planner import allowance
from agentcache.plan.types import Plan, Span
from agentcache.plugin.account import Account
from agentcache.plugin.messages import Blended, LoadOp, RequestRecord, StepMetadata, StoreOp, WorkerReport
from agentcache.plugin.reach import Fetch, PrefillRate, Reach
from agentcache.plugin.request import BadRequest, Wish, read_wish
from agentcache.settings import EngineSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

logger = logging.getLogger("vllm.agentcache")
_LEARNED_AT_ONCE = 100
"""Entries: a match waits for so many at most while a large store is being learned."""
_FETCH_LOOK_S = 0.002
_EXACT_REUSE = RecomputePolicy(strategy="none", boundary_tokens=0, min_saved_tokens=1)


@dataclass(slots=True)
class _Live:
    """A request the scheduler knows. `plan` is what was claimed at its last admission."""

    request: Request
    wish: Wish
    fallback: str = ""
    plan: Plan | None = None
    candidate: Plan | None = None
    prefix_hit: int = 0
    match_s: float = 0.0
    admitted: bool = False
    blended: Blended | None = None
    fetch: Fetch | None = None
    to_store: deque[EntryInfo] = field(default_factory=deque)
    _tokens: Tokens | None = None

    def all_tokens(self) -> Tokens:
        """Its prompt, and what it has generated so far: int32 [n], converted once as long as nothing comes to it."""
        if self._tokens is None or len(self._tokens) != self.request.num_tokens:
            self._tokens = as_tokens(self.request.all_token_ids)
        return self._tokens


class SchedulerHalf:
    """One a engine. All methods run on the scheduler's thread; `forget` and `learn_soon` may be called from any.

    model: the engine's fingerprint; page_size: tokens a page
    unsupported: why this engine can never blend, "" if it can
    rate: how fast the engine prefills; reach: decides about entries on slow tiers, None if there are none
    step_tokens: recomputed tokens that one step may hold, if more than one request is loaded in it
    noting: whether what requests had to compute is noted, for a worker that asks for it (`agentcache.learn`)
    """

    def __init__(self, settings: EngineSettings, model: str, page_size: int, unsupported: str) -> None:
        self.settings = settings
        self.model = model
        self.page_size = page_size
        self.unsupported = unsupported
        self.matcher = Matcher()
        self.cache_manager: KVCacheManager | None = None
        self.noting = False
        self.step_tokens = sys.maxsize
        self.rate = PrefillRate()
        self.reach: Reach | None = None
        self.account = Account(settings.shadow)
        self._live: dict[str, _Live] = {}
        self._loads: list[LoadOp] = []
        self._finished: list[RequestRecord] = []
        self._notes: list[Note] = []
        self._evicted: deque[str] = deque()
        self._added: deque[EntryInfo] = deque()
        self._matcher_lock = threading.Lock()

    # entries

    def learn(self, info: EntryInfo) -> None:
        """An entry can be read from now on."""
        self._learn([info])

    def learn_soon(self, infos: list[EntryInfo]) -> None:
        """Entries that others have added. May be called from any thread; takes effect before the next match."""
        self._added.extend(infos)

    def learn_all(self, infos: Iterator[EntryInfo], patience_s: float = 1.0) -> None:
        """What the store holds already: at once as far as `patience_s` goes, the rest in the background."""
        until = time.monotonic() + patience_s
        while time.monotonic() < until:
            some = list(islice(infos, _LEARNED_AT_ONCE))
            if not some:
                return
            self._learn(some)
        threading.Thread(target=self._learn_rest, args=[infos], name="agentcache-learn", daemon=True).start()

    def _learn_rest(self, infos: Iterator[EntryInfo]) -> None:
        while some := list(islice(infos, _LEARNED_AT_ONCE)):
            self._learn(some)

    def _learn(self, infos: list[EntryInfo]) -> None:
        with self._matcher_lock:
            for info in infos:
                self.matcher.add(info, stride_of(info))

    def forget(self, entry_ids: list[str]) -> None:
        """Entries are gone. Takes effect before the next match."""
        self._evicted.extend(entry_ids)

    def _drop_evicted(self) -> None:
        with self._matcher_lock:
            while self._evicted:
                self.matcher.remove(self._evicted.popleft())
        while self._added:
            self._learn([self._added.popleft()])

    # requests

    def add(self, request: Request) -> None:
        """A new request: read its wish and put `exact` ones into a page namespace without blended pages."""
        try:
            wish = read_wish(request.kv_transfer_params, request.cache_salt, self.settings)
            fallback = ""
        except (BadRequest, TypeError, ValueError, AttributeError) as error:
            wish = read_wish(None, request.cache_salt, self.settings)
            wish = Wish("exact", wish.salt, wish.policy, explicit=True)
            fallback = f"bad parameters: {error}"
        live = _Live(request, wish, fallback)
        if wish.page_salt is not None:
            request.cache_salt = wish.page_salt
            request.block_hashes.clear()
            request.update_block_hashes()
        if (wish.mode == "fast" or wish.cuts) and not fallback:
            live.fallback = self._cannot_blend(request)
        if wish.cuts and not live.fallback:
            live.to_store.extend(self._entries_to_make(request, wish))
        self._live[request.request_id] = live

    def _cannot_blend(self, request: Request) -> str:
        if self.unsupported:
            return self.unsupported
        if request.prompt_token_ids is None or request.prompt_is_token_ids is not None:
            return "prompt embeddings"
        if request.mm_features:
            return "multimodal input"
        if request.lora_request is not None:
            return "LoRA"
        if request.pooling_params is not None:
            return "pooling"
        if request.resumable:
            return "streaming input"
        if request.skip_reading_prefix_cache:
            return "prompt logprobs"
        return ""

    def _entries_to_make(self, request: Request, wish: Wish) -> list[EntryInfo]:
        if request.prompt_token_ids is None or wish.cuts[-1] > request.num_prompt_tokens:
            return []
        return entries_of_stream(
            self.model, wish.store_domain, as_tokens(request.prompt_token_ids), wish.cuts
        )

    def match(self, request: Request, num_computed: int) -> int | None:
        """Tokens behind `num_computed` that this request may skip; None: ask again at the next step."""
        live = self._live.get(request.request_id)
        if live is None:
            return 0
        began = time.perf_counter()
        try:
            return self._match(live, num_computed)
        finally:
            live.match_s = time.perf_counter() - began

    def _match(self, live: _Live, num_computed: int) -> int | None:
        live.candidate = None
        live.prefix_hit = num_computed
        if live.wish.background and self._agents_are_served():
            return None  # it begins when nobody else waits
        if live.fallback or self.unsupported or (live.wish.mode == "exact" and not live.wish.cuts):
            return 0
        if self._hit_is_being_computed(live, num_computed) or self._is_fetching(live):
            return None
        self._drop_evicted()
        tokens = live.all_tokens()
        with self._matcher_lock:
            # What must stay exact has no use for runs that were joined over changed tokens.
            spans = self.matcher.match(tokens, salts=live.wish.domains, joined=not live.wish.cuts)
        if self.reach is not None:
            reached = self.reach.within(spans, waited=live.fetch is not None)
            if isinstance(reached, Fetch):
                live.fetch = reached
                return None
            spans = reached
        if live.wish.cuts:
            plan = self._exact_plan(spans, len(tokens), num_computed)
        else:
            plan = plan_prompt(tokens, num_computed, spans, live.wish.policy)
        if plan is None:
            return 0
        if self._step_is_full(plan, live.wish.policy):
            return None
        live.candidate = plan
        return plan.stop - plan.start

    def _step_is_full(self, plan: Plan, policy: RecomputePolicy) -> bool:
        """Whether this step recomputes so much already that who is decoding would wait too long for `plan` as well.

        A step recomputes at most `step_tokens`, or what its only request has to: never more than vLLM's own chunks
        of prefill would make it, however many requests come at once.
        """
        if not self._loads:
            return False
        planned = sum(_work(op.plan, op.strategy, op.budget) for op in self._loads)
        return planned + _work(plan, policy.strategy, policy.budget or 0.0) > self.step_tokens

    def _agents_are_served(self) -> bool:
        """Whether a request that somebody waits for is in the engine."""
        return any(not live.wish.background and not live.request.resumable for live in self._live.values())

    def _is_fetching(self, live: _Live) -> bool:
        """Whether what it waits for is still on its way. Others are served meanwhile."""
        if self.reach is None or live.fetch is None or not self.reach.waits(live.fetch):
            return False
        if not any(other.admitted for other in self._live.values()):
            time.sleep(_FETCH_LOOK_S)  # nobody else: leave the processor to those who fetch
        return True

    def _exact_plan(self, spans: list[Span], num_tokens: int, num_computed: int) -> Plan | None:
        """What a request that must stay exact may reuse: an unbroken run of exact spans from position 0."""
        usable: list[Span] = []
        reached = 0
        for span in spans:
            if not span.exact or span.start != reached:
                break
            usable.append(span)
            reached = span.stop
        return make_plan(num_tokens, num_computed, usable, _EXACT_REUSE)

    def _hit_is_being_computed(self, live: _Live, num_computed: int) -> bool:
        """Whether the prefix hit stands on pages that this very step computes.

        vLLM registers pages in its prefix cache when it schedules them. Another request may hit them in the same
        step, since one forward writes before it reads; our recompute runs before that forward and would read
        pages that hold nothing yet.
        """
        if num_computed == 0:
            return False
        last = num_computed // self.page_size - 1
        ours = live.request.block_hashes
        if last >= len(ours):
            return False
        for other in self._live.values():
            theirs = other.request
            if (
                theirs is not live.request
                and theirs.status == RequestStatus.RUNNING
                and theirs.num_computed_tokens < num_computed
                and last < len(theirs.block_hashes)
                and theirs.block_hashes[last] == ours[last]
            ):
                return True
        return False

    def admitted(self, request: Request, pages: tuple[int, ...], num_external: int) -> None:
        """vLLM has allocated pages. `num_external` tokens of the candidate plan were accepted, or none."""
        live = self._live.get(request.request_id)
        if live is None:
            return
        first_time, live.admitted = not live.admitted, True
        live.plan, live.candidate = (live.candidate if num_external else None), None
        if first_time:
            self._note_prompt(live)
            if not live.wish.background:
                self._open_account(live)
        if not num_external:
            return
        start = live.prefix_hit
        if live.plan is None or live.plan.stop - live.plan.start != num_external:
            # Whatever was claimed must be filled: without a plan for it, by computing all of it.
            stop = start + num_external
            live.plan = Plan(start, stop, (), np.arange(start, stop, dtype=np.int64))
        policy = live.wish.policy
        tokens = live.all_tokens()
        self._loads.append(
            LoadOp(request.request_id, tokens, pages, live.plan, policy.strategy, policy.budget or 0.0)
        )

    def take_loads(self) -> StepMetadata:
        """What has been admitted and finished since the last step."""
        metadata = StepMetadata(self._loads, [], self._finished, self._notes)
        if self.reach is not None:
            metadata.reasons = self.reach.take_reasons()
            self.account.reasons.update(metadata.reasons)
        self.account.step()
        self._loads, self._finished, self._notes = [], [], []
        return metadata

    def plan_stores(self, output: SchedulerOutput, metadata: StepMetadata) -> None:
        """Add the entries whose last token this step computes to `metadata.stores`."""
        if output.total_num_scheduled_tokens:
            self.rate.began(0 if metadata.loads else output.total_num_scheduled_tokens)
        for request_id, scheduled in output.num_scheduled_tokens.items():
            live = self._live.get(request_id)
            if live is None or not live.to_store:
                continue
            # The request's own count has not been advanced yet when the connector is asked.
            computed = live.request.num_computed_tokens + scheduled
            while live.to_store and live.to_store[0].position + live.to_store[0].num_tokens <= computed:
                info = live.to_store.popleft()
                metadata.stores.append(StoreOp(request_id, self._pages(request_id), info))

    def _pages(self, request_id: str) -> tuple[int, ...]:
        assert self.cache_manager is not None
        return tuple(self.cache_manager.get_block_ids(request_id)[0])

    def pause(self, reason: str) -> None:
        """Stop blending for good: requests that have not been admitted yet are prefilled, and so are all later ones."""
        self.unsupported = reason
        for live in self._live.values():
            if not live.admitted:
                live.candidate, live.fallback = None, live.fallback or reason

    def report(self, report: WorkerReport) -> None:
        """What the worker half did in a step."""
        self.forget(report.lost)
        self._drop_evicted()  # before what was lost and has been computed again is learned again
        for info in report.stored:
            self.learn(info)
        self.account.loaded(report.blended, report.reasons)
        for request_id, blended in report.blended.items():
            if request_id in self._live:
                self._live[request_id].blended = blended
        if report.broken:
            self.pause(report.broken)

    def finish(self, request: Request) -> dict[str, Any] | None:
        """A request is over. Returns its counters if it named agentcache in its parameters."""
        live = self._live.pop(request.request_id, None)
        if live is None:
            return None
        self._note_answer(live)
        record = self._record(live)
        if live.admitted and not live.wish.background:
            record = self.account.finished(record, live.plan, live.blended)
            self._finished.append(record)  # the worker half adds what the load took
        if not live.wish.explicit:
            return None
        # A request that ends in the step of its load is reported on after it is gone: its answer tells the plan.
        return {"agentcache": _public(record.with_load(live.blended) if live.blended else record)}

    def _open_account(self, live: _Live) -> None:
        try:
            tokens = live.all_tokens()[: live.request.num_prompt_tokens]
            self.account.admitted(live.request, live.wish, tokens)
            self.account.claim(live.request, self._record(live).reused_tokens)
        except Exception:  # a request is worth more than its entry in the books
            logger.exception("agentcache: a request is not accounted for")

    # learning

    def _is_noted(self, live: _Live) -> bool:
        """Not what asks to be left alone, not what makes entries, and nothing that could not be blended anyway."""
        if live.wish.background or not self.noting:
            return False
        return live.wish.mode == "fast" and not live.fallback and not self.unsupported

    def _note_prompt(self, live: _Live) -> None:
        """Note what the request found nowhere: tokens alone, so that they can be computed by themselves."""
        if not self._is_noted(live):
            return
        prompt = as_tokens(live.request.prompt_token_ids)
        spans = live.plan.spans if live.plan is not None else ()
        reused = mask_of(len(prompt), [(0, live.prefix_hit), *((span.start, span.stop) for span in spans)])
        runs = tuple(prompt[start:stop].copy() for start, stop in runs_to_learn(reused))
        used: dict[str, int] = {}
        for span in spans:
            used[span.entry] = used.get(span.entry, 0) + span.length
        if runs or used:
            self._notes.append(Note(live.wish.salt, runs, used=used))

    def _note_answer(self, live: _Live) -> None:
        if self._is_noted(live) and live.request.num_output_tokens >= MIN_TOKENS:
            answer = as_tokens(live.request.output_token_ids)
            self._notes.append(Note(live.wish.salt, answer=answer))

    def _record(self, live: _Live) -> RequestRecord:
        prompt = live.request.num_prompt_tokens
        prefix_hit = min(live.prefix_hit, prompt) if live.admitted else 0
        reused = recomputed = 0
        if live.plan is not None:
            inside = _count_inside(live.plan, prompt)
            recomputed = inside
            reused = sum(max(0, min(span.stop, prompt) - span.start) for span in live.plan.spans) - recomputed
        return RequestRecord(
            request_id=live.request.request_id,
            mode=live.wish.mode,
            prompt_tokens=prompt,
            prefix_hit_tokens=prefix_hit,
            reused_tokens=reused,
            recomputed_tokens=recomputed,
            computed_tokens=prompt - prefix_hit - reused - recomputed,
            spans=len(live.plan.spans) if live.plan is not None else 0,
            fallback=live.fallback,
            load_s=0.0,
            recompute_s=0.0,
            finished_at=time.time(),
            match_s=live.match_s,
            entries=tuple(dict.fromkeys(span.entry for span in live.plan.spans))
            if live.plan is not None
            else (),
        )


def _work(plan: Plan, strategy: str, budget: float) -> int:
    """Tokens that a load recomputes at most."""
    scored = allowance(budget, plan.num_matched) if STRATEGIES[strategy].scored_by == "probe" else 0
    return min(len(plan.recompute) + scored, plan.stop - plan.start)


def _count_inside(plan: Plan, prompt: int) -> int:
    """Recomputed positions that lie inside a span and in the prompt."""
    starts = np.array([span.start for span in plan.spans], dtype=np.int64)
    stops = np.array([span.stop for span in plan.spans], dtype=np.int64)
    if not len(starts):
        return 0
    which = np.searchsorted(starts, plan.recompute, side="right") - 1
    inside = (which >= 0) & (plan.recompute < stops[which]) & (plan.recompute < prompt)
    return int(inside.sum())


def _public(record: RequestRecord) -> dict[str, Any]:
    """What the request's own client is told."""
    fields = record.summary()
    del fields["request_id"], fields["finished_at"], fields["arrived_at"]
    return fields
