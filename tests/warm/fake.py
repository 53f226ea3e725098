"""An engine that computes nothing, and counts as the real one would: entries are what it has been asked to keep."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from agentcache.entry import Tokens, entries_of_stream
from agentcache.errors import EngineError
from agentcache.warm.job import Domain, Job, Urgency
from agentcache.warm.pace import Traffic

FINGERPRINT = "f" * 64


class FakeEngine:
    """Keeps entries of index streams and whole pages, and computes a token only if neither covers it."""

    fingerprint = FINGERPRINT
    token_bytes = 10
    default_budget = 1 << 40

    def __init__(self, page_size: int = 4) -> None:
        self.page_size = page_size
        self.stored: dict[str, int] = {}
        self.dropped: list[str] = []
        self.computed: list[int] = []
        self.calls: list[tuple[Tokens, tuple[int, ...]]] = []
        self.now = Traffic()
        self.reports: list[Mapping[str, Any]] = []
        self.requests: list[list[str]] = []
        self.before_step: Callable[[], None] = lambda: None
        self.dies_after: int | None = None
        self._pages: set[bytes] = set()

    def missing(self, entry_ids: Sequence[str]) -> set[str]:
        return set(entry_ids) - self.stored.keys()

    def precompute(self, tokens: Tokens, cuts: Sequence[int], domain: Domain, salt: str) -> int:
        self.before_step()
        if self.dies_after is not None and len(self.calls) >= self.dies_after:
            raise EngineError("the engine at http://nowhere does not answer: gone")
        self.calls.append((tokens, tuple(cuts)))
        whole = (0, *cuts) if cuts[0] else tuple(cuts)
        known = 0
        while (
            known + self.page_size <= len(tokens)
            and self._page(tokens, known + self.page_size) in self._pages
        ):
            known += self.page_size
        within = [cut for cut in whole if cut <= len(tokens)]
        infos = entries_of_stream(FINGERPRINT, "index", tokens, within) if len(within) > 1 else []
        for info, (_, stop) in zip(infos, pairwise(within), strict=True):
            if info.id not in self.stored and stop > known:
                break
            known = max(known, stop)
        for info, (start, _) in zip(infos, pairwise(within), strict=True):
            if start >= cuts[0]:
                self.stored[info.id] = info.num_tokens
        for stop in range(self.page_size, len(tokens) + 1, self.page_size):
            self._pages.add(self._page(tokens, stop))
        self.computed.append(len(tokens) - known)
        return len(tokens) - known

    def _page(self, tokens: Tokens, stop: int) -> bytes:
        return tokens[:stop].tobytes()

    def traffic(self, wait_s: float) -> Traffic:
        return self.now

    def drop(self, entry_ids: Sequence[str]) -> bool:
        self.dropped += entry_ids
        for entry in entry_ids:
            self.stored.pop(entry, None)
        return True

    def touched(self, after: int) -> tuple[int, list[list[str]]]:
        return len(self.requests), self.requests[after:]

    def report(self, progress: Mapping[str, Any]) -> None:
        self.reports.append(progress)


class ListSource:
    """Jobs in the order given, as long as each is the most urgent of those left."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = list(jobs)
        self.finished: list[tuple[str, int | None]] = []
        self.gone: list[str] = []

    def urgency(self) -> Urgency | None:
        return min((job.urgency for job in self.jobs), default=None)

    def take(self) -> Job | None:
        best = self.urgency()
        at = next((n for n, job in enumerate(self.jobs) if job.urgency == best), None)
        return None if at is None else self.jobs.pop(at)

    def done(self, job: Job, tokens_computed: int | None) -> None:
        self.finished.append((job.label, tokens_computed))

    def lost(self, entry_ids: Sequence[str]) -> None:
        self.gone += entry_ids


def job(label: str, seed: int, cuts: Sequence[int], urgency: Urgency = Urgency.IMPORTANT) -> Job:
    """A job with random tokens; equal seeds give equal beginnings."""
    tokens = np.random.default_rng(seed).integers(0, 1 << 30, 4096).astype(np.int32)[: cuts[-1]]
    return Job(tokens, tuple(cuts), urgency, label=label)
