"""One budget in shared memory for all processes of a host; what is read stays while it is held."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
import weakref
from pathlib import Path
from threading import Event

import pytest

from agentcache.store import EntryMissing, EntryStore, LeastRecentlyUsed
from agentcache.store.ram import ram_folder

from .conftest import LAYOUT, MODEL, OpenStore, bits, entry_files, make_entry

FILE_50 = 4096 + 50 * (LAYOUT.token_bytes + 4)
HOLD = """
import sys, time
from pathlib import Path
from tests.store.conftest import LAYOUT, MODEL, make_entry
from agentcache.store import EntryStore
store = EntryStore.open(Path(sys.argv[1]), MODEL, LAYOUT, int(sys.argv[2]), 0)
for seed in range(3):
    store.put(*make_entry(seed))
held = [store.read(make_entry(seed)[0].id) for seed in range(3)]
print("ready", flush=True)
time.sleep(600)
"""


def holder(root: Path, budget: int) -> subprocess.Popen[str]:
    """Another process that has the store open and holds three entries."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(root), str(budget)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def in_shared_memory(root: Path) -> int:
    return sum(path.stat().st_size for path in entry_files(ram_folder(root, 1 << 20)[0]))


def test_stores_of_one_root_share_memory_and_budget(open_store: OpenStore, root: Path) -> None:
    one, two = (open_store(ram=4 * FILE_50, disk=0) for _ in range(2))
    for seed in range(10):
        (one if seed % 2 else two).put(*make_entry(seed))
        assert one.flush(10)
        assert two.flush(10)
    info, kv = make_entry(9)
    assert bits(two.read(info.id)) == bits(kv)
    assert in_shared_memory(root) == one.stats().tiers["ram"].bytes == 4 * FILE_50
    assert one.stats().tiers == two.stats().tiers | {"ram": one.stats().tiers["ram"]}


def test_what_is_read_stays_as_it_is_while_others_evict(open_store: OpenStore) -> None:
    store = open_store(ram=4 * FILE_50, disk=0, policy=LeastRecentlyUsed())
    info, kv = make_entry(0)
    store.put(info, kv)
    assert store.flush(10)
    held = store.read(info.id)
    for seed in range(1, 20):
        store.put(*make_entry(seed))
        assert store.flush(10)
    assert bits(held) == bits(kv)
    assert store.contains(info.id)  # memory in use is not given away, so the budget holds
    del held
    gc.collect()
    for seed in range(20, 30):
        store.put(*make_entry(seed))
        assert store.flush(10)
    assert not store.contains(info.id)


def test_a_killed_process_leaves_memory_usable_and_within_budget(root: Path) -> None:
    budget = 4 * FILE_50
    process = holder(root, budget)
    policy = LeastRecentlyUsed()
    with EntryStore.open(root, MODEL, LAYOUT, budget, 0, put_wait_s=0, policy=policy) as store:
        for seed in range(3):  # what another process holds is read, and stays
            info, kv = make_entry(seed)
            assert bits(store.read(info.id)) == bits(kv)
        for seed in range(10, 14):
            store.put(*make_entry(seed))
            assert in_shared_memory(root) <= budget
        assert not store.missing([make_entry(seed)[0].id for seed in range(3)])
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        gc.collect()
        for seed in range(20, 24):
            store.put(*make_entry(seed))
            assert store.flush(10)
        assert [store.contains(make_entry(seed)[0].id) for seed in range(20, 24)] == [True] * 4
    folder, _ = ram_folder(root, budget)
    assert not folder.exists()  # the last one to leave puts out the light


def test_memory_of_a_store_that_is_gone_is_given_back(open_store: OpenStore, tmp_path: Path) -> None:
    """Once its process is gone, too, and not before: another store that is opened sees to it."""
    gone, kept = tmp_path / "gone", tmp_path / "kept"
    folders = [ram_folder(root, 1 << 20)[0] for root in (gone, kept)]
    processes = [holder(root, 1 << 20) for root in (gone, kept)]
    try:
        shutil.rmtree(gone)
        open_store().close()
        assert all(folder.exists() for folder in folders)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    open_store()
    assert [folder.exists() for folder in folders] == [False, True]
    EntryStore.open(kept, MODEL, LAYOUT, 1 << 20, 0).close()
    assert not folders[1].exists()


def test_a_folder_of_another_user_is_not_used(tmp_path: Path) -> None:
    folder, room = ram_folder(tmp_path / "store", 1 << 20)
    assert folder.parent == Path("/dev/shm")
    assert room == 1 << 20
    folder.mkdir(mode=0o755)
    try:
        assert ram_folder(tmp_path / "store", 1 << 20)[0] == tmp_path / "store" / "ram"
    finally:
        folder.rmdir()
    folder, room = ram_folder(tmp_path / "store", 1 << 50)
    assert folder == tmp_path / "store" / "ram"


def test_a_read_tensor_may_be_written_without_harm(open_store: OpenStore) -> None:
    """Nobody should, but a stray write must not reach other processes."""
    store, other = open_store(), open_store()
    info, kv = make_entry(1)
    store.put(info, kv)
    assert store.flush(10)
    store.read(info.id).zero_()
    assert bits(other.read(info.id)) == bits(kv)
    other.close()
    assert bits(open_store().read(info.id)) == bits(kv)


def test_entries_in_memory_alone_are_gone_with_it(root: Path) -> None:
    info, kv = make_entry(1)
    with EntryStore.open(root, MODEL, LAYOUT, 1 << 22, 0) as store:
        store.put(info, kv)
        assert bits(store.read(info.id)) == bits(kv)
    with EntryStore.open(root, MODEL, LAYOUT, 1 << 22, 0) as store, pytest.raises(EntryMissing):
        store.read(info.id)


def test_opened_with_a_smaller_budget(open_store: OpenStore, root: Path) -> None:
    one = open_store(ram=6 * FILE_50)
    for seed in range(6):
        one.put(*make_entry(seed))
    assert one.flush(10)
    one._ram.drop_mappings()
    open_store(ram=2 * FILE_50)
    assert in_shared_memory(root) == 2 * FILE_50


def test_a_read_below_ram_keeps_nothing_of_its_caller(open_store: OpenStore) -> None:
    """Entries it holds could not be evicted until the next collection of garbage."""
    store = open_store()
    info, kv = make_entry(1)
    store.put(info, kv)
    assert store.flush(30)
    assert store._ram.remove(info.id)

    def caller() -> weakref.ref[Event]:
        held = Event()
        store.read(info.id)
        return weakref.ref(held)

    gc.collect()
    gc.disable()
    try:
        assert caller()() is None
    finally:
        gc.enable()
