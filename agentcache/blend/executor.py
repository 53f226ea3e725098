"""Filling a request's pages according to a plan: load entries, move their keys, write them, recompute the rest."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from agentcache.blend.correction import Correction, Offsets
from agentcache.blend.forward import NoLayers, PagedForward
from agentcache.blend.joined import Held
from agentcache.blend.move import choose
from agentcache.blend.pages import PagedKV
from agentcache.blend.ranks import agree
from agentcache.blend.rope import KeyShift
from agentcache.blend.scores import deviation, tail_scores
from agentcache.entry import Tokens
from agentcache.plan import reused_positions, top_up
from agentcache.plan.types import Plan, Positions, Span

ReadEntry = Callable[[str], torch.Tensor]
"""Entry id to its K/V, [2, L, n, H, D] on the CPU. Raises one of the `unreadable` errors given to the executor."""


class OtherRankFailed(Exception):
    """A tensor-parallel rank could not do its part, so that no rank may go on."""


@dataclass(frozen=True, slots=True)
class Job:
    """One plan to carry out: fill positions [plan.start, plan.stop) of the request that owns `pages`.

    Positions before plan.start hold valid K/V, or an earlier job's; nothing behind plan.stop is kept valid.
    tokens: the prompt's, from position 0 on
    strategy, budget: how reused positions are scored (`STRATEGIES`), and the share of the matched tokens that may
    be recomputed in all; strategies without scores recompute what the plan says
    """

    plan: Plan
    tokens: Tokens
    pages: Sequence[int]
    strategy: str = "boundary"
    budget: float = 0.0


@dataclass(slots=True)
class BlendResult:
    """What one plan took.

    lost: entry id to why it could not be read; holes: its tokens, computed instead
    topped_up: reused positions that were recomputed because of their scores; no_scores: why there were none
    load_s, compute_s: its share of the time that it and those executed together with it took
    held: what is still to be computed, in the engine's next forward; `settle` once that is over
    """

    lost: dict[str, str] = field(default_factory=dict)
    holes: int = 0
    topped_up: int = 0
    no_scores: str = ""
    load_s: float = 0.0
    compute_s: float = 0.0
    share: float = 1.0
    held: Held | None = None

    def settle(self) -> None:
        """Take over what the forward has cost."""
        if self.held is not None:
            self.compute_s, self.held = self.held.seconds * self.share, None


class BlendExecutor:
    """Runs plans on one worker, with the model runner's own layers.

    read: the entry store; unreadable: exceptions that mean a lost entry
    """

    def __init__(
        self,
        forward: PagedForward,
        paged: PagedKV,
        shift: KeyShift,
        read: ReadEntry,
        unreadable: tuple[type[Exception], ...],
    ) -> None:
        self._forward = forward
        self._paged = paged
        self._shift = shift
        self._read = read
        self._unreadable = unreadable
        self._move = choose(paged.device, paged.dtype, paged.head_dim, shift)
        self._table: torch.Tensor | None = None

    def correct(self, correction: Correction | None) -> None:
        """From now on, what is to be added to reused K/V whose context is another one; None: nothing."""
        self._table = correction.table(self._paged.device) if correction is not None else None

    @torch.inference_mode()
    def execute(
        self,
        plan: Plan,
        tokens: Tokens,
        pages: Sequence[int],
        strategy: str = "boundary",
        budget: float = 0.0,
    ) -> BlendResult:
        """`execute_all` for one plan."""
        return self.execute_all([Job(plan, tokens, pages, strategy, budget)])[0]

    @torch.inference_mode()
    def execute_all(
        self, jobs: Sequence[Job], failed: Callable[[Exception], None] | None = None
    ) -> list[BlendResult]:
        """Carry out several plans, in order: a later one may stand on pages that an earlier one fills.

        Those that need no scores are recomputed together: a forward of few tokens costs nearly as much as one of many.
        failed: given where a forward of the engine follows, which may do it (`PagedForward.with_next_step`)
        """
        if failed is not None and not any(job.strategy in _SCORES for job in jobs):
            return self._execute(jobs, failed)
        results: list[BlendResult] = []
        together: list[Job] = []
        for job in jobs:
            if job.strategy not in _SCORES:
                together.append(job)
                continue
            results += self._execute(together) if together else []
            results += self._execute([job])
            together = []
        return results + (self._execute(together) if together else [])

    def _execute(
        self, jobs: Sequence[Job], failed: Callable[[Exception], None] | None = None
    ) -> list[BlendResult]:
        results = [BlendResult() for _ in jobs]
        began = time.perf_counter()
        gone = self._load(jobs, results)
        loaded = time.perf_counter()
        todo: list[tuple[Positions, Tokens, Sequence[int]]] = []
        for job, result, lost in zip(jobs, results, gone, strict=True):
            plan = replace(job.plan, recompute=with_holes(job.plan.recompute, lost))
            result.holes = sum(span.length for span in lost)
            todo.append((self._topped_up(plan, job, result), job.tokens, job.pages))
        held: Held | None = None
        if failed is not None:
            held = self._forward.with_next_step(todo, failed)
        else:
            self._forward.run_all(todo)
        load_s, compute_s = loaded - began, time.perf_counter() - loaded
        total = max(1, sum(len(positions) for positions, _, _ in todo))
        for result, (positions, _, _) in zip(results, todo, strict=True):
            result.load_s = load_s / len(jobs)
            result.share = len(positions) / total
            result.compute_s = compute_s * result.share
            result.held = held
        return results

    def flush(self) -> None:
        """Compute what is still held: no forward has come."""
        self._forward.join.flush()

    @property
    def forwards(self) -> dict[str, int]:
        """How many steps of the engine took what was recomputed along, and how many times it had its own forward."""
        return {"joined": self._forward.join.joined, "apart": self._forward.join.apart}

    def _load(self, jobs: Sequence[Job], results: Sequence[BlendResult]) -> list[list[Span]]:
        """Write what can be read into the pages. The spans of each job that any rank could not read."""
        failure: Exception | None = None
        missing: list[bool] = []
        for job, result in zip(jobs, results, strict=True):
            found: list[tuple[Span, torch.Tensor]] = []
            try:
                for span in job.plan.spans:
                    try:
                        found.append((span, self._read(span.entry)))
                    except self._unreadable as error:
                        result.lost[span.entry] = type(error).__name__
                if found:
                    self._place(found, job.pages)
            except Exception as error:
                failure = failure or error
            missing += [span.entry in result.lost for span in job.plan.spans]
        *gone, failed = agree([*missing, failure is not None])
        if failed:
            raise failure or OtherRankFailed("another rank could not load entries")
        flags = iter(gone)
        return [[span for span in job.plan.spans if next(flags)] for job in jobs]

    def _place(self, found: Sequence[tuple[Span, torch.Tensor]], pages: Sequence[int]) -> None:
        """Write the spans' K/V into the request's pages, corrected, keys moved to where the spans stand now."""
        paged, device = self._paged, self._paged.device
        new = torch.cat([torch.arange(span.start, span.stop) for span, _ in found])
        old = new - torch.cat([torch.full((span.length,), span.shift) for span, _ in found])
        cos, sin = (side.to(device) for side in self._shift.cos_sin(old, new))
        offsets = None
        if self._table is not None:
            exact = torch.cat([torch.full((span.length,), span.exact) for span, _ in found])
            offsets = Offsets.at(self._table, self._shift, old, exact)
        slots = paged.slots(pages, new)
        parts = [entry[:, :, span.offset : span.offset + span.length].to(device) for span, entry in found]
        if not paged.direct:
            for layer, (keys, values) in enumerate(self._move(parts, cos, sin, offsets)):
                paged.write(layer, keys, values, slots)
            return
        first, neox = self._shift.first, self._shift.neox
        stops = np.cumsum([span.length for span, _ in found]).tolist()
        for layer in range(paged.num_layers):
            for (span, _), kv, stop in zip(found, parts, stops, strict=True):
                own = slice(stop - span.length, stop)
                own_kv = kv[:, layer] if offsets is None else offsets.added_to(kv[:, layer], layer, own)
                paged.place(layer, own_kv, cos[own], sin[own], slots[own], neox=neox, first=first)

    def _topped_up(self, plan: Plan, job: Job, result: BlendResult) -> Positions:
        """The positions to recompute, those chosen by scores included."""
        score = _SCORES.get(job.strategy)
        if score is None or not len(reused_positions(plan)):
            return plan.recompute
        try:
            scores = score(self._forward, self._paged, plan, job.tokens, job.pages)
        except NoLayers as error:
            result.no_scores = str(error)
            return plan.recompute
        topped = top_up(plan, scores, job.budget).recompute
        result.topped_up = len(topped) - len(plan.recompute)
        return topped


_SCORES: dict[str, Any] = {"deviation": deviation, "boundary+tail": tail_scores}


def with_holes(positions: Positions, lost: Sequence[Span]) -> Positions:
    """`positions` and every position of the lost spans, ascending, without repeats."""
    if not lost:
        return positions
    holes = [np.arange(span.start, span.stop, dtype=np.int64) for span in lost]
    return np.unique(np.concatenate([positions, *holes]))
