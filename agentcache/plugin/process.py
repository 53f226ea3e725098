"""What one engine process knows: its model runner, its worker half, its store. Filled in by vLLM's start-up order.

    general plug-in loaded ─▶ initialize_kv_cache (RUNNER) ─▶ connector, worker role (WORKER) ─▶ scheduler role

With one worker both halves live in one process and share one store; with several each has its own.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from agentcache.settings import EngineSettings
from agentcache.store import EntryLayout, EntryStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentcache.plugin.worker import WorkerHalf

RUNNER: Any = None
WORKER: WorkerHalf | None = None

_stores: dict[tuple[str, str], EntryStore] = {}
_listeners: list[Callable[[list[str]], None]] = []
_lock = threading.Lock()


def shared_store(settings: EngineSettings, model: str, layout: EntryLayout) -> EntryStore:
    """The process's store for one model, opened once."""
    with _lock:
        key = (settings.store_dir, model)
        store = _stores.get(key)
        if store is None:
            store = EntryStore.open(
                settings.store_path, model, layout, settings.ram_bytes, settings.disk_bytes, on_evict=_tell
            )
            _stores[key] = store
        return store


def on_evict(listener: Callable[[list[str]], None]) -> None:
    """Call `listener` with the ids of entries that the store has dropped (from any thread)."""
    _listeners.append(listener)


def _tell(entry_ids: list[str]) -> None:
    for listener in _listeners:
        listener(entry_ids)


def close() -> None:
    """Write what is queued and close the stores."""
    global RUNNER, WORKER
    with _lock:
        if WORKER is not None:
            WORKER.close()
        for store in _stores.values():
            store.close()
        _stores.clear()
        _listeners.clear()
        RUNNER = WORKER = None
