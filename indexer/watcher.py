"""Keeping an index right while its files change. Events are hints; looking at the disk is the truth.

Everything is looked at on start, when HEAD moves, when folders move, come or go, when events were lost, and
every `reconcile_s`. In between, only the files that events name.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from agentcache.errors import AgentCacheError
from agentcache.indexer.checkout import Checkout
from agentcache.indexer.events import CannotWatch, EventSource, Hints
from agentcache.indexer.index import Index
from agentcache.indexer.records import ChangeRecord, Progress

log = logging.getLogger(__name__)

_TICK_S = 0.5
"""How often HEAD is looked at."""


class _Stopped(Exception):
    """Raised inside an update that is not to go on."""


class Watcher:
    """Calls `on_change` with what became of the blocks of each changed file, from a thread of its own.

    debounce_s: a change counts when nothing happened for so long...
    max_wait_s: ...or when the first one is so old
    reconcile_s: everything is looked at at least so often; `poll_s` where events are not to be had
    on_status: told, in one line, when watching falls back to polling, and when the root goes or comes back
    """

    def __init__(
        self,
        index: Index,
        on_change: Callable[[list[ChangeRecord]], None],
        *,
        on_status: Callable[[str], None] | None = None,
        debounce_s: float = 0.03,
        max_wait_s: float = 1.0,
        reconcile_s: float = 30.0,
        poll_s: float = 2.0,
    ) -> None:
        self._index = index
        self._on_change = on_change
        self._on_status = on_status or log.warning
        self._debounce_s = debounce_s
        self._max_wait_s = max_wait_s
        self._reconcile_s = reconcile_s
        self._poll_s = poll_s
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._ready = threading.Event()
        self._source: EventSource | None = None
        self._thread = threading.Thread(target=self._loop, name="agentcache-watcher", daemon=True)
        self._checkout: Checkout | None = None
        self._head = ""
        self._last_full = 0.0
        self._lost_root = False

    @property
    def polling(self) -> bool:
        """Whether there are no events, and everything is looked at every `poll_s` instead."""
        return self._source is None

    def start(self) -> None:
        """Start watching; the first look at everything happens in the background (`wait_ready`)."""
        self._watch()
        self._thread.start()

    def wait_ready(self, timeout_s: float | None = None) -> bool:
        """Wait until the first look at everything is done; whether it is."""
        return self._ready.wait(timeout_s)

    def stop(self) -> None:
        """Stop watching, and give up the update under way. No `on_change` comes after it. Twice is fine."""
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()
        if self._source is not None:
            self._source.stop()

    def _watch(self) -> None:
        source = EventSource(self._index.root, self._wake.set)
        try:
            source.start()
        except CannotWatch as error:
            self._source = None
            self._on_status(
                f"no file events ({error}): looking at all files every {self._poll_s:g} s instead"
            )
            return
        self._source = source

    def _loop(self) -> None:
        hints = Hints(set(), True)
        while not self._stopping.is_set():
            if hints.everything or hints.paths:
                self._update(hints)
                self._ready.set()
            hints = self._next()

    def _next(self) -> Hints:
        """Wait for something to do. Returns at least every tick."""
        if self._wake.wait(_TICK_S if self._source is not None else min(_TICK_S, self._poll_s)):
            self._settle()
        hints = self._source.take() if self._source is not None else Hints(set(), False)
        age = time.monotonic() - self._last_full
        if (
            age > (self._reconcile_s if self._source is not None else self._poll_s)
            or self._head != self._read_head()
        ):
            return Hints(hints.paths, True)
        return hints

    def _settle(self) -> None:
        """Wait until the burst of events is over, but not for ever."""
        latest = time.monotonic() + self._max_wait_s
        while True:
            self._wake.clear()
            if self._stopping.is_set():
                return
            if not self._wake.wait(self._debounce_s) or time.monotonic() > latest:
                self._wake.clear()
                return

    def _update(self, hints: Hints) -> None:
        try:
            if hints.everything:
                self._checkout = self._index.checkout()
                # Read first: a switch while we look is seen at the next tick.
                self._head = self._read_head()
                changes = self._index.update(self._go_on).changes
                self._last_full = time.monotonic()
            else:
                changes = self._index.refresh(hints.paths)
        except _Stopped:
            return
        except (AgentCacheError, OSError) as error:
            self._failed(error)
            return
        if self._lost_root:
            self._recovered()
        if changes and not self._stopping.is_set():
            try:
                self._on_change(changes)
            except Exception:
                log.exception("a listener failed; watching goes on")

    def _go_on(self, _progress: Progress) -> None:
        if self._stopping.is_set():
            raise _Stopped

    def _failed(self, error: Exception) -> None:
        """The root or the index went away: say so once, and look again every `poll_s`."""
        self._last_full = time.monotonic() - self._reconcile_s + self._poll_s
        if not self._lost_root:
            self._lost_root = True
            self._on_status(f"cannot update ({error}); trying again every {self._poll_s:g} s")

    def _recovered(self) -> None:
        self._lost_root = False
        self._on_status(f"{self._index.root} is back")
        if self._source is not None:
            self._source.stop()
        self._watch()
        # What happened before the new watches were in place.
        self._last_full = 0.0

    def _read_head(self) -> str:
        return self._checkout.head() if self._checkout is not None else ""
