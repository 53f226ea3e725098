"""Budgets hold at every moment, and what is evicted is told."""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from agentcache.store import Candidate, EntryMissing, EntryStore, ExpectedValue, LeastRecentlyUsed

from .conftest import LAYOUT, MODEL, OpenStore, bits, entry_files, make_entry

TOKEN = LAYOUT.token_bytes
FILE_50 = 4096 + 50 * (TOKEN + 4)


def files_on_disk(root: Path) -> dict[tuple[str, int], int]:
    """Sizes of all entry files, the ones being written included; a file keeps its key when it is moved."""
    sizes: dict[tuple[str, int], int] = {}
    for folder, _, names in os.walk(root):
        for name in names:
            if name.endswith(".safetensors"):
                try:
                    status = os.stat(os.path.join(folder, name))
                except FileNotFoundError:
                    continue
                sizes[name, status.st_ino] = status.st_size
    return sizes


def bytes_on_disk(root: Path) -> int:
    """Bytes of the entry files that were there at one moment of a busy store; 0 if none was found."""
    first, second = files_on_disk(root), files_on_disk(root)
    return sum(first.values()) if first.keys() == second.keys() else 0


@settings(max_examples=40, deadline=None)
@given(
    ram_tokens=st.integers(0, 600),
    disk_files=st.floats(0, 6),
    steps=st.lists(st.tuples(st.integers(0, 12), st.integers(1, 120), st.booleans()), max_size=25),
)
def test_budgets_hold_under_any_puts_and_reads(
    ram_tokens: int, disk_files: float, steps: list[tuple[int, int, bool]]
) -> None:
    ram, disk = ram_tokens * TOKEN, int(disk_files * FILE_50)
    lost: set[str] = set()
    known: dict[str, bytes] = {}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "store"
        done = threading.Event()
        peak = 0

        def watch() -> None:
            nonlocal peak
            while not done.wait(0.001):
                peak = max(peak, bytes_on_disk(root))

        watcher = threading.Thread(target=watch)
        watcher.start()
        store = EntryStore.open(root, MODEL, LAYOUT, ram, disk, on_evict=lost.update, put_wait_s=5)
        try:
            for seed, num_tokens, read in steps:
                info, kv = make_entry(seed, num_tokens)
                if read:
                    try:
                        assert bits(store.read(info.id)) == bits(kv)
                    except EntryMissing:
                        lost.add(info.id)
                else:
                    known[info.id] = bits(kv)
                    lost.discard(info.id)
                    store.put(info, kv)
                assert store.stats().tiers["ram"].bytes <= ram
            assert store.flush(30)
            stats = store.stats()
            assert stats.tiers["disk"].bytes == bytes_on_disk(root) <= disk
            served = {info.id for info in store.infos()}
            for id in served:
                try:
                    assert bits(store.read(id)) == known[id]
                except EntryMissing:  # it was in RAM alone, and a read before brought another one there
                    assert id in lost
            if ram >= 2 * (4096 + 120 * (TOKEN + 4)):  # else puts may have been refused
                assert known.keys() - served <= lost
            store.close()
        finally:
            done.set()
            watcher.join()
            store.close()
        assert peak <= disk


def test_the_least_recently_used_goes_first(open_store: OpenStore) -> None:
    lost: list[str] = []
    store = open_store(ram=4 * FILE_50, disk=4 * FILE_50, on_evict=lost.extend, policy=LeastRecentlyUsed())
    ids = []
    for seed in range(4):
        info, kv = make_entry(seed)
        ids.append(info.id)
        store.put(info, kv)
    store.close()
    store = open_store(ram=0, disk=4 * FILE_50, on_evict=lost.extend, policy=LeastRecentlyUsed())
    store.read(ids[0])  # from disk: the oldest is now the newest
    store.close()
    store = open_store(ram=FILE_50, disk=4 * FILE_50, on_evict=lost.extend, policy=LeastRecentlyUsed())
    store.put(*make_entry(10))
    store.flush(30)
    store.put(*make_entry(11))
    store.flush(30)
    assert lost == [ids[1], ids[2]]
    assert store.missing(ids) == [ids[1], ids[2]]
    assert store.stats().tiers["disk"].evictions == 2


def test_another_policy_can_decide(open_store: OpenStore) -> None:
    class LongestStays:
        def worth(self, candidate: Candidate, now: float) -> float:
            return candidate.num_tokens

    store = open_store(disk=3 * FILE_50, policy=LongestStays())
    entries = [make_entry(seed, num_tokens) for seed, num_tokens in enumerate((40, 10, 45, 50))]
    for entry in entries:
        store.put(*entry)
    store.flush(30)
    store.close()
    assert {info.num_tokens for info in open_store(disk=3 * FILE_50).infos()} == {40, 45, 50}


def test_evicted_from_disk_but_in_ram_is_still_served(open_store: OpenStore, root: Path) -> None:
    lost: list[str] = []
    store = open_store(disk=FILE_50, on_evict=lost.extend)
    (one, kv), two = make_entry(1), make_entry(2)
    store.put(one, kv)
    store.put(*two)
    store.flush(30)
    assert len(entry_files(root)) == 1
    assert lost == []
    assert bits(store.read(one.id)) == bits(kv)
    assert {info.id for info in store.infos()} == {one.id, two[0].id}


def test_the_disk_budget_is_that_of_the_root(open_store: OpenStore, root: Path) -> None:
    other = "ef" * 32
    open_store(disk=2 * FILE_50).put(*make_entry(1))
    foreign = open_store(model=other, disk=2 * FILE_50)
    for seed in range(5):
        foreign.put(*make_entry(seed, model=other))
    foreign.flush(30)
    assert bytes_on_disk(root) <= 2 * FILE_50


def test_a_smaller_budget_at_the_next_start(open_store: OpenStore, root: Path) -> None:
    store = open_store()
    for seed in range(6):
        store.put(*make_entry(seed))
    store.close()
    store = open_store(disk=2 * FILE_50)
    assert len(list(store.infos())) == len(entry_files(root)) == 2


def test_too_large_is_counted(open_store: OpenStore) -> None:
    store = open_store(ram=4096 + 60 * (TOKEN + 4), disk=30 * TOKEN)
    store.put(*make_entry(1, 61))
    store.put(*make_entry(2, 40))
    store.flush(30)
    assert store.stats().errors == {"larger_than_disk_budget": 1, "larger_than_ram_budget": 1}
    assert store.contains(make_entry(2, 40)[0].id)


def candidate(**facts: float) -> Candidate:
    usual = {
        "size_bytes": 1000,
        "num_tokens": 100,
        "position": 0,
        "created": 0.0,
        "last_used": 0.0,
        "uses": 1,
    }
    return Candidate("id", **usual | facts)  # type: ignore[arg-type]


def test_what_expected_value_prefers() -> None:
    policy, now = ExpectedValue(), 1000.0
    usual = policy.worth(candidate(), now)
    for better in (
        candidate(uses=5),
        candidate(last_used=900.0),
        candidate(position=50_000),  # costs more to compute
        candidate(size_bytes=500),
        candidate(weight=2.0),
    ):
        assert policy.worth(better, now) > usual
    assert policy.worth(candidate(weight=0.0), now) == 0
    assert policy.worth(candidate(last_used=2000.0), now) > 0  # written by a clock that was ahead


def test_what_no_index_refers_to_goes_first(open_store: OpenStore) -> None:
    store = open_store(ram=4 * FILE_50, disk=4 * FILE_50)
    ids = [make_entry(seed)[0].id for seed in range(4)]
    for seed in range(4):
        store.put(*make_entry(seed))
    assert store.flush(30)
    store.weigh({ids[2]: 0.0, ids[0]: 100.0})
    store.put(*make_entry(9))
    assert store.flush(30)
    assert store.missing(ids) == [ids[2]]
