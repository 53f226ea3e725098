"""What one engine process knows: its model runner, its worker half, its store. Filled in by vLLM's start-up order.

    general plug-in loaded ─▶ initialize_kv_cache (RUNNER) ─▶ connector, worker role (WORKER) ─▶ scheduler role

Where both halves live in one process they share one store; otherwise (several workers, and vLLM's CPU server) each
process opens the same root, or, with tensor parallelism, its own rank's (`of_rank`).
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agentcache.settings import EngineSettings
from agentcache.store import EntryLayout, EntryStore
from agentcache.store.ranks import rank_root, rank_url

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentcache.entry import EntryInfo
    from agentcache.plugin.worker import WorkerHalf

RUNNER: Any = None
WORKER: WorkerHalf | None = None

_stores: dict[tuple[str, str], EntryStore] = {}
_listeners: list[Callable[[list[str]], None]] = []
_add_listeners: list[Callable[[list[EntryInfo]], None]] = []
_lock = threading.Lock()


def of_rank(settings: EngineSettings, rank: int, ranks: int) -> EngineSettings:
    """What one of several tensor-parallel ranks is told: each has its own heads of every entry, in a store of its own.

    An entry has the same id in all of them. The budgets are for all ranks of this machine together.
    """
    if ranks == 1:
        return settings
    return replace(
        settings,
        store_dir=str(rank_root(settings.store_path, rank)),
        ram_bytes=settings.ram_bytes // ranks,
        disk_bytes=settings.disk_bytes // ranks,
        remote_url=rank_url(settings.remote_url, rank),
    )


def shared_store(settings: EngineSettings, model: str, layout: EntryLayout) -> EntryStore:
    """The process's store for one model, opened once."""
    with _lock:
        key = (settings.store_dir, model)
        store = _stores.get(key)
        if store is None:
            store = EntryStore.open(
                settings.store_path,
                model,
                layout,
                settings.ram_bytes,
                settings.disk_bytes,
                on_evict=_tell,
                on_add=_tell_added,
                disk_codec=settings.disk_codec,
                remote_url=settings.remote_url,
                remote_codec=settings.remote_codec,
            )
            _stores[key] = store
        return store


def on_evict(listener: Callable[[list[str]], None]) -> None:
    """Call `listener` with the ids of entries that the store has dropped (from any thread)."""
    _listeners.append(listener)


def on_add(listener: Callable[[list[EntryInfo]], None]) -> None:
    """Call `listener` with entries that others have added to the store (from any thread)."""
    _add_listeners.append(listener)


def _tell_added(infos: list[EntryInfo]) -> None:
    for listener in _add_listeners:
        listener(infos)


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
        _add_listeners.clear()
        RUNNER = WORKER = None
