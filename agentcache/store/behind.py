"""Write-behind in front of a store: an engine's step ends when it has read its pages, not when they are stored.

What `EntryStore.put` does takes about as long as a tenth to a third of computing the tokens (fresh shared memory,
two catalogs, an evicted entry or more). Here it happens in a thread, while the next step computes, and an entry can be
read from this process's own memory meanwhile. A killed process loses what it had not put: it was never promised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Condition

import torch

from agentcache.entry import EntryInfo
from agentcache.store.store import EntryStore
from agentcache.store.writer import Pending, Writer

_HELD_BYTES = 64 << 20
"""Of K/V that wait to be put: about as much as is kept for use again (`buffers`)."""

OnFailure = Callable[[EntryInfo, Exception | None], None]


class WriteBehind:
    """`put`, `read`, `missing` and `remove` of `store`, for one process. Every method may be called from any thread.

    on_failure: an entry that was taken is not in the store, because of an error, or because it found no room there
    """

    def __init__(self, store: EntryStore, on_failure: OnFailure) -> None:
        self._store, self._on_failure = store, on_failure
        self._changed = Condition()  # guards `_held`, and tells when it has become smaller
        self._held: dict[str, Pending] = {}
        self._held_bytes = 0
        self._writer = Writer("behind", self._put)

    @property
    def pending(self) -> int:
        """Entries that are not in the store yet."""
        return self._writer.pending

    def put(self, info: EntryInfo, kv: torch.Tensor) -> None:
        """As `EntryStore.put`, later; `kv` must not change any more. Waits while too much is held."""
        with self._changed:
            if info.id in self._held:
                return
            self._changed.wait_for(lambda: not self._held or self._held_bytes + kv.nbytes <= _HELD_BYTES)
            entry = self._held[info.id] = Pending(info, kv)
            self._held_bytes += kv.nbytes
        self._writer.submit(entry)

    def read(self, id: str) -> torch.Tensor:
        with self._changed:
            held = self._held.get(id)
        return held.kv if held is not None else self._store.read(id)

    def missing(self, ids: Sequence[str]) -> list[str]:
        with self._changed:
            left = [id for id in ids if id not in self._held]
        return self._store.missing(left)

    def remove(self, id: str) -> None:
        with self._changed:
            self._let_go(id)
        self._store.remove(id)

    def close(self, timeout_s: float = 60.0) -> None:
        """Put what is held. The store is closed by whoever opened it."""
        self._writer.close(timeout_s)

    def _put(self, entry: Pending) -> None:
        """Runs in the writer's thread."""
        info = entry.info
        with self._changed:
            if self._held.get(info.id) is not entry:
                return  # removed meanwhile
        error: Exception | None = None
        try:
            self._store.put(info, entry.kv)
        except Exception as raised:
            error = raised
        with self._changed:
            wanted = self._held.get(info.id) is entry
            if wanted:
                self._let_go(info.id)
        if not wanted:
            self._store.remove(info.id)
        elif error is not None or not self._store.contains(info.id):
            self._on_failure(info, error)

    def _let_go(self, id: str) -> None:
        held = self._held.pop(id, None)
        if held is not None:
            self._held_bytes -= held.kv.nbytes
            self._changed.notify_all()
