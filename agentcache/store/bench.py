"""Whether a tier that fails is left alone for a while, and how long one that works takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock

_FIRST_S, _LONGEST_S = 1.0, 60.0
_MEMORY = 0.3
"""Weight of the latest measurement."""


class Bench:
    """After a failure nobody is let through for 1 s, then twice as long after each one more, up to a minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, Lock()
        self._pause_s, self._until = 0.0, 0.0

    @property
    def out(self) -> bool:
        """Whether the tier is to be left alone now."""
        with self._lock:
            return self._clock() < self._until

    def failed(self) -> None:
        with self._lock:
            now = self._clock()
            if now >= self._until:  # what was under way when it was benched says nothing new
                self._pause_s = min(_LONGEST_S, self._pause_s * 2 or _FIRST_S)
                self._until = now + self._pause_s

    def worked(self) -> None:
        with self._lock:
            self._pause_s = self._until = 0.0


class Rate:
    """What reading takes: a fixed part and one by size, from the last reads. Starts with a guess."""

    def __init__(self, latency_s: float, bytes_per_s: float) -> None:
        self._lock = Lock()
        self._latency_s, self._bytes_per_s = latency_s, bytes_per_s

    def measured(self, size: int, seconds: float) -> None:
        """A read of `size` bytes took `seconds`."""
        with self._lock:
            if size < 65536:
                self._latency_s += _MEMORY * (seconds - self._latency_s)
                return
            # never believed to be faster than twice what was seen in all
            moving_s = max(seconds - self._latency_s, seconds / 2)
            self._bytes_per_s += _MEMORY * (size / moving_s - self._bytes_per_s)
            self._latency_s = min(self._latency_s, seconds)

    def expected_s(self, size: int) -> float:
        with self._lock:
            return self._latency_s + size / self._bytes_per_s
