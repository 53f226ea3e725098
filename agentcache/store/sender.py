"""Write-behind to the remote tier: a thread that sends what is durable here, and looks what others have sent."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from threading import Condition, Thread

import torch

from agentcache.entry import EntryInfo
from agentcache.store.errors import EntryCorrupt, EntryMissing, WriteRefused
from agentcache.store.remote import RemoteTier

_log = logging.getLogger(__name__)
_TICK_S = 1.0
_LONGEST = 100_000
"""Entries that may wait to be sent: their facts alone, not their K/V. The oldest are given up beyond that."""


class Sender:
    """Sends in order; what the tier refuses stays first in the queue until the tier takes it."""

    def __init__(self, tier: RemoteTier, read: Callable[[str], torch.Tensor]) -> None:
        """read: an entry's K/V, from this machine."""
        self._tier, self._read = tier, read
        self._queue: deque[EntryInfo] = deque(maxlen=_LONGEST)
        self._changed = Condition()
        self._busy = self._closing = False
        self._thread = Thread(target=self._run, name="agentcache-store-sender", daemon=True)
        self._thread.start()

    def submit(self, info: EntryInfo) -> None:
        with self._changed:
            self._queue.append(info)
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Wait until nothing is left to send; False if that takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queue and not self._busy, timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Send what can be sent now, and end. What a benched tier has not got is on disk, and is not sent later."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._can_send(), _TICK_S)
                if self._closing and not self._can_send():
                    return
                info = self._queue.popleft() if self._can_send() else None
                self._busy = info is not None
            try:
                if info is not None:
                    self._send(info)
                elif not self._closing:
                    self._tier.tick()
            except Exception:  # a fault of ours: the thread must live
                _log.exception("the store could not send an entry")
            finally:
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()

    def _can_send(self) -> bool:
        return bool(self._queue) and not self._tier.bench.out

    def _send(self, info: EntryInfo) -> None:
        try:
            self._tier.write(info, self._read(info.id))
        except (EntryMissing, EntryCorrupt):
            return  # evicted meanwhile
        except WriteRefused:
            with self._changed:
                self._queue.appendleft(info)  # benched now: again after the pause
