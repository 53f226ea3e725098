"""Entries that only a slow tier has: is waiting for them shorter than computing their tokens?"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from agentcache.plan.types import Span

WAITED = "waited for the remote tier"
SLOWER = "remote tier slower than computing"
LATE = "remote tier later than expected"

_GUESSED_RATE = 1000.0
_SMOOTHING = 0.3
_MIN_TOKENS = 128
"""A step of fewer tokens is mostly overhead."""
_MOST_IN_FLIGHT = 16


class Fetches(Protocol):
    """What is asked of the entry store. Every method returns at once."""

    def far(self, ids: Sequence[str]) -> Mapping[str, int]:
        """Those of `ids` that only a slow tier has, and the bytes that would have to be fetched."""

    def fetch_s(self, num_bytes: int) -> float:
        """How long fetching so many bytes takes now; infinite where that is impossible."""

    def prefetch(self, ids: Sequence[str]) -> None:
        """Begin to bring entries here."""


class PrefillRate:
    """Tokens a second that the engine prefills, from the steps that did nothing else.

    Steps end in the order they began, and one is computed at a time, however many have been scheduled.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun: deque[tuple[int, float]] = deque()
        self._last_end = float("-inf")
        self._rate = 0.0

    @property
    def tokens_per_s(self) -> float:
        return self._rate or _GUESSED_RATE

    def began(self, num_tokens: int) -> None:
        """A step was scheduled; 0 tokens for one that does more than prefill."""
        if len(self._begun) == _MOST_IN_FLIGHT:  # ends were not told
            self._begun.clear()
        self._begun.append((num_tokens, self._clock()))

    def ended(self) -> None:
        if not self._begun:
            return
        num_tokens, began = self._begun.popleft()
        now = self._clock()
        seconds, self._last_end = now - max(began, self._last_end), now
        if num_tokens >= _MIN_TOKENS and seconds > 0:
            rate = num_tokens / seconds
            self._rate = rate if not self._rate else self._rate + _SMOOTHING * (rate - self._rate)


@dataclass(frozen=True, slots=True)
class Fetch:
    """A request waits for these entries, until this time of the clock at most."""

    entries: tuple[str, ...]
    until: float


class Reach:
    """Decides for one request's spans at a time. `reasons`: what was decided, and how often."""

    def __init__(
        self, store: Fetches, rate: PrefillRate, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store, self._rate, self._clock = store, rate, clock
        self.reasons: dict[str, int] = {}

    def waits(self, fetch: Fetch) -> bool:
        """Whether entries that are worth it are still on their way."""
        if self._clock() >= fetch.until:
            return False
        far = self._store.far(fetch.entries)
        return bool(far) and self._store.fetch_s(sum(far.values())) < float("inf")

    def within(self, spans: Sequence[Span], waited: bool) -> list[Span] | Fetch:
        """The spans that can be reused now; or what to wait for first, which is then on its way.

        waited: the request has waited already, and does not again
        """
        far = self._store.far([span.entry for span in spans])
        if not far:
            if waited:
                self._count(WAITED)
            return list(spans)
        expected_s = self._store.fetch_s(sum(far.values()))
        computing_s = sum(span.length for span in spans if span.entry in far) / self._rate.tokens_per_s
        if expected_s < float("inf") and not waited:
            self._store.prefetch(list(far))  # if not for this request, then for the next
        if expected_s < computing_s and not waited:
            # the estimate may be wrong; a request that waits in vain takes half as long again at most, or as expected
            patience_s = min(computing_s, max(2 * expected_s, computing_s / 2))
            return Fetch(tuple(far), self._clock() + patience_s)
        self._count(LATE if waited else SLOWER)
        return [span for span in spans if span.entry not in far]

    def take_reasons(self) -> dict[str, int]:
        """Counts since the last call."""
        reasons, self.reasons = self.reasons, {}
        return reasons

    def _count(self, reason: str) -> None:
        self.reasons[reason] = self.reasons.get(reason, 0) + 1
