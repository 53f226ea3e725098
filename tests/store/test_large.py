"""A store too large to be compared with its files when it is opened, others that add to it, and odd clocks."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from agentcache.entry import EntryInfo
from agentcache.store import EntryStore, LeastRecentlyUsed, opening

from .conftest import LAYOUT, MODEL, OpenStore, bits, entry_files, make_entry

FILE_50 = 4096 + 50 * (LAYOUT.token_bytes + 4)


def filled(root: Path, count: int) -> list[str]:
    with EntryStore.open(root, MODEL, LAYOUT, 1 << 24, 1 << 26) as store:
        for seed in range(count):
            store.put(*make_entry(seed))
    return [make_entry(seed)[0].id for seed in range(count)]


def test_compared_in_the_background(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = filled(root, 12)
    monkeypatch.setattr(opening, "SMALL", 5)
    files = {path.stem: path for path in entry_files(root)}
    files[ids[0]].unlink()  # a row without a file
    with EntryStore.open(root, MODEL, LAYOUT, 0, 1 << 26) as store:
        assert store._disk.settled(60)  # or else it may find them again
        store._disk._catalog.delete_ids(MODEL, [ids[1], ids[2]])  # files without a row
    files[ids[3]].write_bytes(b"x" * 9000)
    told: list[EntryInfo] = []
    with EntryStore.open(root, MODEL, LAYOUT, 1 << 24, 1 << 26, on_add=told.extend) as store:
        assert bits(store.read(ids[1])) == bits(make_entry(1)[1])  # whether or not it has been found by then
        assert store._disk.settled(60)
        assert {info.id for info in told} >= {ids[2]}
        assert store.missing(ids) == [ids[0]] or store.missing(ids) == [ids[0], ids[3]]
        assert {info.id for info in store.infos()} >= set(ids[1:3] + ids[4:])


def test_closing_does_not_wait_for_the_comparison(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = filled(root, 12)
    monkeypatch.setattr(opening, "SMALL", 5)
    for _ in range(3):
        store = EntryStore.open(root, MODEL, LAYOUT, 1 << 24, 1 << 26)
        store.close()
    with EntryStore.open(root, MODEL, LAYOUT, 1 << 24, 1 << 26) as store:
        assert store.missing(ids) == []
        assert store.stats().errors == {}


def test_what_another_process_adds_is_told(open_store: OpenStore) -> None:
    told: list[EntryInfo] = []
    one, two = open_store(on_add=told.extend), open_store()
    one.put(*make_entry(1))
    two.put(*make_entry(2))
    assert one.flush(30)
    assert two.flush(30)
    one._disk.tick()  # as its thread does every two seconds
    assert [info.id for info in told] == [make_entry(2)[0].id]
    one._disk.tick()
    assert len(told) == 1


@pytest.mark.parametrize("jump_s", [-10 * 86400.0, 10 * 86400.0])
def test_a_clock_that_jumps_changes_no_order(
    root: Path, monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    ids = filled(root, 3)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump_s)
    with EntryStore.open(root, MODEL, LAYOUT, 4 * FILE_50, 4 * FILE_50, policy=LeastRecentlyUsed()) as store:
        for seed in (3, 4):
            store.put(*make_entry(seed))
            assert store.flush(30)
        assert not store._disk.missing([make_entry(4)[0].id])
        assert store._disk.missing(ids) == [ids[0]]  # the oldest by far, whatever the clock said
