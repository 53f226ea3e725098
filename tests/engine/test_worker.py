"""The worker half without an engine: what is on its way into the store is neither missing nor lost."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from agentcache.entry import EntryInfo, as_tokens, context_digest, entry_id
from agentcache.plugin.worker import WorkerHalf
from agentcache.store import EntryLayout, EntryStore

MODEL = "ab" * 32
LAYOUT = EntryLayout(parts=2, layers=3, heads=2, head_dim=16, dtype=torch.float32)


def test_asking_for_an_entry_on_its_way_does_not_lose_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    with EntryStore.open(tmp_path, MODEL, LAYOUT, 1 << 20, 1 << 20, on_evict=told.extend) as store:
        put, gate = store.put, threading.Event()

        def slowly(info: EntryInfo, kv: torch.Tensor) -> None:
            assert gate.wait(30)
            put(info, kv)

        monkeypatch.setattr(store, "put", slowly)
        half = WorkerHalf(MODEL, store, num_pages=1, page_size=16, unsupported="")
        tokens, context = as_tokens(range(20)), context_digest(as_tokens([]))
        info = EntryInfo(entry_id(MODEL, "", context, tokens), "", context, "", 0, tokens)
        assert half._entries is not None
        half._entries.put(info, torch.ones(LAYOUT.shape(20)))
        assert half.missing([info.id]) == []
        half._prefetcher.shutdown(wait=True)
        assert told == []
        gate.set()
        half.close()
        assert store.contains(info.id)
