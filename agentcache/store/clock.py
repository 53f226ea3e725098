"""Seconds since the epoch that never repeat nor run back, whatever is done to the machine's clock."""

from __future__ import annotations

import time
from threading import Lock


class StoreClock:
    """Starts behind `newest`, the last time the store has recorded."""

    def __init__(self, newest: float = 0.0) -> None:
        self._last = newest
        self._lock = Lock()

    def now(self) -> float:
        with self._lock:
            self._last = max(time.time(), self._last + 1e-6)
            return self._last
