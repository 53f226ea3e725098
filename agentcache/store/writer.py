"""The threads that work behind the engine's back: one makes entries durable, one moves hot entries up."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from threading import Condition, Thread
from typing import NamedTuple

import torch

from agentcache.entry import EntryInfo

_log = logging.getLogger(__name__)
_TICK_S = 2.0


class Pending(NamedTuple):
    """An entry on its way. `kv` holds it in the RAM tier until it is there."""

    info: EntryInfo
    kv: torch.Tensor


class Writer:
    """Calls `write` for each submitted entry, in order, and `tick` every two seconds."""

    def __init__(
        self, name: str, write: Callable[[Pending], None], tick: Callable[[], None] = lambda: None
    ) -> None:
        self._write, self._tick = write, tick
        self._queue: deque[Pending] = deque()
        self._changed = Condition()
        self._submitted = self._done = self._bytes = 0
        self._closing = False
        self._thread = Thread(target=self._run, name=f"agentcache-store-{name}", daemon=True)
        self._thread.start()

    @property
    def pending(self) -> int:
        with self._changed:
            return self._submitted - self._done

    @property
    def pending_bytes(self) -> int:
        """Of K/V, the entry being written included."""
        with self._changed:
            return self._bytes

    def submit(self, entry: Pending) -> None:
        with self._changed:
            self._queue.append(entry)
            self._submitted += 1
            self._bytes += entry.kv.nbytes
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything submitted by now was written or given up."""
        with self._changed:
            target = self._submitted
            return self._changed.wait_for(lambda: self._done >= target, timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Finish the queue and end the thread; False if it still runs after `timeout_s`."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        next_tick = time.monotonic() + _TICK_S
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closing, _TICK_S)
                entry = self._queue.popleft() if self._queue else None
                if entry is None and self._closing:
                    return
            try:
                if entry is not None:
                    self._write(entry)
                if time.monotonic() >= next_tick:
                    self._tick()
                    next_tick = time.monotonic() + _TICK_S
            except Exception:
                # a fault of ours: the thread must live, or every later put would wait for room in vain
                _log.exception("the store could not write an entry")
            finally:
                if entry is not None:
                    with self._changed:
                        self._done += 1
                        self._bytes -= entry.kv.nbytes
                        self._changed.notify_all()
                entry = None  # what it holds in RAM may go
