"""Damaged files and catalogs cost a recompute, never a wrong byte."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from agentcache.errors import StoreError
from agentcache.store import EntryCorrupt, EntryMissing, EntryStore
from agentcache.store.format import VERSION

from .conftest import LAYOUT, OpenStore, bits, entry_files, facts, make_entry

NUM_TOKENS = 50
KV_BYTES = LAYOUT.token_bytes * NUM_TOKENS


def flip(path: Path, offset: int, bit: int = 3) -> None:
    raw = bytearray(path.read_bytes())
    raw[offset] ^= 1 << bit
    path.write_bytes(raw)


def cut(path: Path, size: int) -> None:
    os.truncate(path, size)


def to_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "file").touch()


def to_link(path: Path) -> None:
    target = path.with_name("moved")
    path.rename(target)
    path.symlink_to(target)


def to_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def stored(open_store: OpenStore, root: Path) -> tuple[str, bytes, Path]:
    """One durable entry, not in RAM: its id, its bits and its file."""
    info, kv = make_entry(1, NUM_TOKENS)
    store = open_store()
    store.put(info, kv)
    store.close()
    (path,) = entry_files(root)
    return info.id, bits(kv), path


DAMAGE: dict[str, Callable[[Path], None]] = {
    "bit in the first layer": lambda path: flip(path, 4096),
    "bit in the last byte of the K/V": lambda path: flip(path, 4096 + KV_BYTES - 1),
    "bit in the first token": lambda path: flip(path, 4096 + KV_BYTES),
    "bit in the last token": lambda path: flip(path, 4096 + KV_BYTES + 4 * NUM_TOKENS - 1),
    "bit in the header's length": lambda path: flip(path, 1),
    "huge header": lambda path: flip(path, 7, 6),
    "bit in the padding": lambda path: flip(path, 4095),
    "cut in the K/V": lambda path: cut(path, 4096 + 100),
    "cut by one byte": lambda path: cut(path, 4096 + KV_BYTES + 4 * NUM_TOKENS - 1),
    "cut in the header": lambda path: cut(path, 100),
    "cut to nothing": lambda path: cut(path, 0),
    "longer by a byte": lambda path: path.open("ab").write(b"x") and None,
    "not an entry": lambda path: path.write_bytes(b"x" * 9000) and None,
    "a folder": to_folder,
    "a link": to_link,
    "a pipe": to_pipe,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_while_open(open_store: OpenStore, root: Path, damage: str) -> None:
    id, expected, path = stored(open_store, root)
    lost: list[str] = []
    store = open_store(on_evict=lost.extend)
    DAMAGE[damage](path)
    with pytest.raises(EntryCorrupt):
        store.read(id)
    assert lost == [id]
    assert store.stats().errors == {"corrupt": 1}
    assert not os.path.lexists(path)
    assert not store.contains(id)
    assert list(store.infos()) == []
    with pytest.raises(EntryMissing):
        store.read(id)
    store.put(*make_entry(1, NUM_TOKENS))  # recomputed
    assert store.flush(30)
    assert bits(open_store().read(id)) == expected


def test_every_bit_of_the_header_counts(open_store: OpenStore, root: Path) -> None:
    id, expected, path = stored(open_store, root)
    good = path.read_bytes()
    store = open_store(ram=0)
    for offset in random.Random(1).sample(range(4096), 300):
        flip(path, offset, offset % 8)
        with pytest.raises((EntryCorrupt, EntryMissing)):
            store.read(id)
        path.write_bytes(good)
    assert bits(store.read(id)) == expected


def test_deleted_file(open_store: OpenStore, root: Path) -> None:
    id, _, path = stored(open_store, root)
    lost: list[str] = []
    store = open_store(on_evict=lost.extend)
    path.unlink()
    assert store.missing([id]) == [id]
    with pytest.raises(EntryMissing):
        store.read(id)
    assert lost == [id]
    assert list(store.infos()) == []
    assert store.stats().tiers["disk"].bytes == 0


def test_a_file_in_another_entrys_place(open_store: OpenStore, root: Path) -> None:
    store = open_store()
    (one, _), (two, kv) = make_entry(1), make_entry(2)
    for entry in ((one, make_entry(1)[1]), (two, kv)):
        store.put(*entry)
    store.close()
    paths = {path.stem: path for path in entry_files(root)}
    shutil.copyfile(paths[two.id], paths[one.id])
    store = open_store()
    with pytest.raises(EntryCorrupt):
        store.read(one.id)
    assert bits(store.read(two.id)) == bits(kv)


def test_a_file_of_a_later_version_is_left_alone(open_store: OpenStore, root: Path) -> None:
    id, _, path = stored(open_store, root)
    ours = f'"version":"{VERSION}"'.encode()
    assert ours in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(ours, b'"version":"9"'))
    store = open_store()
    with pytest.raises(EntryMissing):
        store.read(id)
    assert store.stats().errors == {"unknown_format": 1}
    assert path.exists()


def fill(open_store: OpenStore) -> list[tuple[object, ...]]:
    store = open_store()
    for seed in range(30):
        store.put(*make_entry(seed, 20 + seed, salt="tenant" if seed % 3 == 0 else ""))
    store.flush(60)
    before = sorted(facts(info) for info in store.infos())
    store.close()
    assert len(before) == 30
    return before


def restored(store: EntryStore) -> list[tuple[object, ...]]:
    found = sorted(facts(info) for info in store.infos())
    for seed in range(30):
        info, kv = make_entry(seed, 20 + seed, salt="tenant" if seed % 3 == 0 else "")
        assert bits(store.read(info.id)) == bits(kv)
    return found


@pytest.mark.parametrize("how", ["deleted", "not a database", "cut", "scrambled", "tables dropped", "empty"])
def test_catalog_rebuilt_from_the_files(open_store: OpenStore, root: Path, how: str) -> None:
    before = fill(open_store)
    used = sum(path.stat().st_size for path in entry_files(root))
    catalog = root / "catalog.db"
    if how == "deleted":
        catalog.unlink()
    elif how == "not a database":
        catalog.write_bytes(b"not a database, but long enough to be one" * 1000)
    elif how == "cut":
        cut(catalog, catalog.stat().st_size // 2)
    elif how == "empty":
        cut(catalog, 0)
    elif how == "scrambled":
        raw = bytearray(catalog.read_bytes())
        raw[5000:] = random.Random(2).randbytes(len(raw) - 5000)
        catalog.write_bytes(raw)
    else:
        with sqlite3.connect(catalog) as connection:
            connection.execute("DROP TABLE entries")
        connection.close()
    store = open_store()
    assert restored(store) == before
    assert store.stats().tiers["disk"].bytes == used


def test_a_changed_row_is_not_believed(open_store: OpenStore, root: Path) -> None:
    before = fill(open_store)
    with sqlite3.connect(root / "catalog.db") as connection:
        connection.execute("UPDATE entries SET position = position + 1 WHERE key = 3")
        connection.execute("UPDATE entries SET tokens = zeroblob(80) WHERE key = 5")
    connection.close()
    store = open_store()
    assert restored(store) == before
    assert store.stats().errors == {"catalog": 2}


def test_catalog_scrambled_while_open(open_store: OpenStore, root: Path) -> None:
    before = fill(open_store)
    store = open_store()
    catalog = root / "catalog.db"
    size = catalog.stat().st_size
    with catalog.open("r+b") as file:
        file.seek(4096)
        file.write(random.Random(3).randbytes(size - 4096))
    assert restored(store) == before
    assert restored(open_store()) == before


def test_a_newer_catalog_is_refused_in_one_line(open_store: OpenStore, root: Path) -> None:
    fill(open_store)
    with sqlite3.connect(root / "catalog.db") as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StoreError, match=r"version 99.*upgrade agentcache") as caught:
        open_store()
    assert "\n" not in str(caught.value)
    assert len(entry_files(root)) == 30


def test_an_older_catalog_is_made_anew_from_the_files(open_store: OpenStore, root: Path) -> None:
    before = fill(open_store)
    with sqlite3.connect(root / "catalog.db") as connection:
        connection.execute("PRAGMA user_version = 3")
        connection.execute("UPDATE entries SET weight = 7.0")
    connection.close()
    assert restored(open_store()) == before
    with sqlite3.connect(root / "catalog.db") as connection:
        assert connection.execute("SELECT max(weight) FROM entries").fetchone() == (1.0,)
    connection.close()


def test_the_root_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "store").touch()
    with pytest.raises(StoreError, match="cannot be opened"):
        EntryStore.open(tmp_path / "store", "ab" * 32, LAYOUT, 1 << 20, 1 << 20)


def test_tensors_of_other_devices_are_refused(open_store: OpenStore) -> None:
    info, kv = make_entry(1)
    with pytest.raises(ValueError, match="CPU"):
        open_store().put(info, kv.to(torch.device("meta")))


def test_a_catalog_that_fails_is_done_without(open_store: OpenStore, root: Path) -> None:
    """Every statement fails, as on a disk with errors: the files answer, and the catalog is left alone."""
    before = fill(open_store)
    store = open_store()
    catalog = store._disk._catalog
    catalog.close()
    assert restored(store) == before
    info, kv = make_entry(100)
    store.put(info, kv)
    assert store.flush(30)
    assert bits(store.read(info.id)) == bits(kv)
    assert set(store.stats().errors) == {"catalog"}
    # a store whose catalog works finds it in shared memory, and makes it durable
    other = open_store()
    assert restored(other) == sorted([*before, facts(info)])
    assert other.flush(30)
    assert other.stats().entries == 31


def test_strange_ids_are_missing(open_store: OpenStore) -> None:
    store = open_store()
    strange = ["", "x", "../" * 20 + "abcd", "/" * 64, "0" * 64]
    assert store.missing(strange) == strange
    for id in strange:
        with pytest.raises(EntryMissing):
            store.read(id)
