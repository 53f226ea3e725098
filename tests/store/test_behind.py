"""Write-behind: what was taken can be read at once, gets into the store, and is told of when it does not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from agentcache.entry import EntryInfo
from agentcache.store import EntryStore
from agentcache.store import behind as module
from agentcache.store.behind import WriteBehind

from .conftest import OpenStore, bits, make_entry


class Slow:
    """A store that puts nothing until its gate is opened."""

    def __init__(self, store: EntryStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gate = threading.Event()
        self.reached = threading.Event()
        put = store.put

        def slowly(info: EntryInfo, kv: torch.Tensor) -> None:
            self.reached.set()
            assert self.gate.wait(30)
            put(info, kv)

        monkeypatch.setattr(store, "put", slowly)


Behind = Callable[[EntryStore], tuple[WriteBehind, list[tuple[str, Exception | None]]]]


@pytest.fixture
def behind() -> Iterator[Behind]:
    opened: list[WriteBehind] = []

    def make(store: EntryStore) -> tuple[WriteBehind, list[tuple[str, Exception | None]]]:
        failed: list[tuple[str, Exception | None]] = []
        opened.append(WriteBehind(store, lambda info, error: failed.append((info.id, error))))
        return opened[-1], failed

    yield make
    for one in opened:
        one.close()


def test_what_was_taken_is_read_before_and_after_it_is_stored(
    open_store: OpenStore, behind: Behind, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    slow = Slow(store, monkeypatch)
    entries, failed = behind(store)
    made = [make_entry(seed) for seed in range(5)]
    ids = [info.id for info, _ in made]
    for info, kv in made:
        entries.put(info, kv)
        entries.put(info, kv)
    assert entries.pending == 5
    assert store.missing(ids) == ids
    other = make_entry(9)[0].id
    assert entries.missing([*ids, other]) == [other]
    assert [bits(entries.read(info.id)) for info, _ in made] == [bits(kv) for _, kv in made]
    slow.gate.set()
    entries.close()
    assert entries.pending == 0
    assert store.missing(ids) == []
    assert [bits(store.read(info.id)) for info, _ in made] == [bits(kv) for _, kv in made]
    assert not failed


def test_what_is_removed_meanwhile_is_not_stored(
    open_store: OpenStore, behind: Behind, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    slow = Slow(store, monkeypatch)
    entries, failed = behind(store)
    (first, first_kv), (second, second_kv), (third, third_kv) = (make_entry(seed) for seed in range(3))
    for info, kv in ((first, first_kv), (second, second_kv), (third, third_kv)):
        entries.put(info, kv)
    assert slow.reached.wait(30)  # the first one is being put
    entries.remove(first.id)
    entries.remove(second.id)
    assert entries.missing([first.id, second.id, third.id]) == [first.id, second.id]
    slow.gate.set()
    entries.close()
    assert store.missing([first.id, second.id, third.id]) == [first.id, second.id]
    assert not failed


def test_no_room_and_errors_are_told(open_store: OpenStore, behind: Behind) -> None:
    entries, failed = behind(open_store(ram=0, disk=0))
    info, kv = make_entry(0)
    entries.put(info, kv)
    wrong, _ = make_entry(1)
    entries.put(wrong, kv[..., :1])
    entries.close()
    assert [id for id, _ in failed] == [info.id, wrong.id]
    assert failed[0][1] is None
    assert isinstance(failed[1][1], ValueError)
    assert entries.missing([info.id, wrong.id]) == [info.id, wrong.id]


def test_too_much_waits(open_store: OpenStore, behind: Behind, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is held stays within bounds; an entry that is larger than those goes when it is alone."""
    store = open_store()
    slow = Slow(store, monkeypatch)
    entries, _ = behind(store)
    info, kv = make_entry(0)
    monkeypatch.setattr(module, "_HELD_BYTES", 2 * kv.nbytes - 1)
    entries.put(info, kv)
    more = [make_entry(1), make_entry(2, 500)]
    thread = threading.Thread(target=lambda: [entries.put(*one) for one in more])
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    assert entries.missing([one.id for one, _ in more]) == [one.id for one, _ in more]
    slow.gate.set()
    thread.join(30)
    assert not thread.is_alive()
    entries.close()
    assert not store.missing([info.id, *(one.id for one, _ in more)])
