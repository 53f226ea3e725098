"""Two processes on one root, killed processes, disks that cannot be written."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from agentcache.store import EntryCorrupt, EntryMissing, EntryStore
from agentcache.store.ram import ram_folder

from .conftest import LAYOUT, MODEL, OpenStore, bits, entry_files, make_entry

FILE_50 = 4096 + 50 * (LAYOUT.token_bytes + 4)
HAMMER = str(Path(__file__).with_name("hammer.py"))
EXPECTED = {info.id: bits(kv) for info, kv in map(make_entry, range(60))}


def start(*arguments: object, **more: Any) -> subprocess.Popen[str]:
    command = [sys.executable, HAMMER, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **more)


def result(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return json.loads(out)


def all_served_are_right(store: EntryStore, *, all_there: bool = True) -> int:
    """How many entries were read; some may have been evicted by others on their way, unless `all_there`."""
    read = 0
    for info in list(store.infos()):
        try:
            assert bits(store.read(info.id)) == EXPECTED[info.id]
            read += 1
        except EntryMissing:
            assert not all_there
    return read


def test_two_processes_write_and_read_one_root(root: Path) -> None:
    first, second = start("once", root, 0, 40), start("once", root, 20, 60)
    for outcome in (result(first), result(second)):
        assert outcome["wrong"] == 0
        assert outcome["read"] >= 40
        assert outcome["errors"] == {}
    with EntryStore.open(root, MODEL, LAYOUT, 1 << 22, 1 << 26) as store:
        assert all_served_are_right(store) == 60
        assert store.stats().tiers["disk"].bytes == sum(path.stat().st_size for path in entry_files(root))
        assert store.stats().errors == {}


def test_what_another_process_wrote_is_found(open_store: OpenStore, root: Path) -> None:
    store = open_store()
    info, kv = make_entry(1)
    assert store.missing([info.id]) == [info.id]
    result(start("once", root, 0, 3))
    assert store.contains(info.id)
    assert bits(store.read(info.id)) == bits(kv)
    # and without its row, by path alone
    other, kv = make_entry(5, salt="tenant")
    writer = open_store()
    writer.put(other, kv)
    writer.flush(30)
    store._disk._catalog.delete_ids(MODEL, [other.id])
    assert bits(store.read(other.id)) == bits(kv)


def size_of(path: Path) -> int:
    """0 if it has been evicted since it was listed."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def test_kill_a_hundred_times(root: Path) -> None:
    """One of two processes, or both at once, at random moments: nothing wrong is served, budgets hold, all opens."""
    budget = 30 * (4096 + 50 * (LAYOUT.token_bytes + 4))
    hammer = start("killed", root, 0, 60, stdin=subprocess.PIPE)
    assert hammer.stdin is not None
    assert hammer.stdout is not None
    total = killed = 0
    while killed < 100:
        both = killed % 10 == 8
        killed += 2 if both else 1
        hammer.stdin.write("both\n" if both else "one\n")
        hammer.stdin.flush()
        assert hammer.stdout.readline() == "killed\n"
        for where in (root, ram_folder(root, budget)[0]):
            assert sum(map(size_of, entry_files(where))) <= budget + FILE_50
        if both:
            with EntryStore.open(root, MODEL, LAYOUT, budget, budget) as store:
                total += all_served_are_right(store, all_there=False)
                assert store.flush(60)  # what was in memory alone is made durable now
                stats = store.stats()
                assert stats.errors == {}
                assert stats.tiers["disk"].entries == len(entry_files(root))
                files = sum(path.stat().st_size for path in entry_files(root))
                assert stats.tiers["disk"].bytes == files <= budget
                assert stats.tiers["ram"].bytes <= budget
            assert list((root / "tmp").iterdir()) == []
    assert total > 100
    hammer.communicate(timeout=60)
    assert hammer.returncode == 0
    EntryStore.open(root, MODEL, LAYOUT, budget, budget).close()  # and nothing is left in shared memory
    assert not ram_folder(root, budget)[0].exists()


@pytest.mark.parametrize("limit", [0, 5000, 300_000])
def test_a_limit_on_files_costs_entries_only(root: Path, limit: int) -> None:
    """A limit on file sizes is met at whichever file passes it first, in memory or on disk."""
    if limit == 5000:  # the catalog exists, and no more than it fits
        EntryStore.open(root, MODEL, LAYOUT, 1 << 22, 1 << 23).close()
    outcome = result(start("limited", root, limit))
    assert outcome["wrong"] == 0
    assert outcome["pending"] == 0
    assert sum(outcome["errors"].values()) >= 20 - outcome["read"]
    assert list((root / "tmp").iterdir()) == []
    with EntryStore.open(root, MODEL, LAYOUT, 1 << 22, 1 << 23) as store:
        served = all_served_are_right(store)
        assert served == len(entry_files(root))
        assert (served > 0) == (limit == 300_000)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid():
        pytest.skip("mounting a file system of 600 kB takes root")
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_costs_durability_only(small_disk: Path) -> None:
    root = small_disk / "store"
    outcome = result(start("once", root, 0, 40))
    assert (outcome["wrong"], outcome["pending"]) == (0, 0)
    assert outcome["read"] == 40  # from RAM
    assert outcome["errors"].keys() == {"disk_full"}
    assert list((root / "tmp").iterdir()) == []
    with EntryStore.open(root, MODEL, LAYOUT, 1 << 22, 1 << 23) as store:
        assert 0 < all_served_are_right(store) == len(entry_files(root)) < 40


def test_a_disk_that_was_full(small_disk: Path) -> None:
    root = small_disk / "store"
    filler = small_disk / "filler"
    with EntryStore.open(root, MODEL, LAYOUT, 1 << 22, 1 << 23) as store:
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(b"x" * 4096):
                pass
        store.put(*make_entry(0))
        assert store.flush(30)
        assert store.stats().errors == {"disk_full": 1}
        assert store.stats().tiers["disk"].entries == 0
        filler.unlink()
        store.put(*make_entry(1))
        store.put(*make_entry(0))  # in RAM, and not durable yet
        assert store.flush(30)
        assert all_served_are_right(store) == store.stats().tiers["disk"].entries == 2


@pytest.fixture
def readable_by_all() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    for found in [folder, *folder.rglob("*")]:
        if found.is_dir():
            found.chmod(0o700)
    shutil.rmtree(folder)


@pytest.mark.parametrize("catalog", ["there", "gone"])
def test_a_read_only_root_is_read(readable_by_all: Path, catalog: str) -> None:
    root = readable_by_all / "store"
    with EntryStore.open(root, MODEL, LAYOUT, 1 << 22, 1 << 23) as store:
        for seed in range(10):
            store.put(*make_entry(seed))
    if catalog == "gone":
        (root / "catalog.db").unlink()
    for found in [root, *root.rglob("*")]:
        found.chmod(0o555 if found.is_dir() else 0o444)
    before = sorted(os.walk(root))
    outcome = result(start("nobody", root, 5, 15))
    assert sorted(os.walk(root)) == before
    assert outcome["read"] == 15  # ten from disk, five put into RAM
    assert outcome["wrong"] == 0
    assert outcome["errors"] == {"no_permission": 6}  # the catalog, and five puts


def test_a_root_that_becomes_read_only(open_store: OpenStore, root: Path) -> None:
    """A shard folder replaced by a file: what cannot be written there is counted, the rest goes on."""
    store = open_store()
    info, kv = make_entry(1)
    shard = root / MODEL[:16] / "shared" / info.id[:2]
    shard.parent.mkdir(parents=True)
    shard.touch()
    store.put(info, kv)
    assert store.flush(30)
    assert store.stats().errors == {"io_error": 1}
    assert bits(store.read(info.id)) == bits(kv)
    other, kv = next(entry for entry in map(make_entry, range(2, 60)) if entry[0].id[:2] != info.id[:2])
    store.put(other, kv)
    assert store.flush(30)
    assert store.stats().tiers["disk"].entries == 1
    store.close()
    with pytest.raises((EntryMissing, EntryCorrupt)):
        open_store().read(info.id)
