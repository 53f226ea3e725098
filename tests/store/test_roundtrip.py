"""What is put comes back, bit for bit, now and after a restart, and anybody can open the files."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from agentcache.entry import EntryInfo
from agentcache.errors import StoreError
from agentcache.store import EntryLayout, EntryMissing

from .conftest import LAYOUT, MODEL, OpenStore, bits, entry_files, facts, make_entry


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("num_tokens", [1, 20, 5000])
def test_bits_survive_ram_disk_and_restart(
    open_store: OpenStore, dtype: torch.dtype, num_tokens: int
) -> None:
    layout = EntryLayout(2, 3, 2, 16, dtype)
    info, kv = make_entry(1, num_tokens, layout=layout)
    kv.view(-1)[:3] = torch.tensor([float("nan"), float("-inf"), -0.0], dtype=dtype)
    expected = bits(kv)
    store = open_store(layout=layout)
    store.put(info, kv)
    assert bits(store.read(info.id)) == expected
    assert store.flush(30)
    store.close()

    store = open_store(layout=layout)
    (found,) = store.infos()
    assert facts(found) == facts(info)
    assert bits(store.read(info.id)) == expected
    assert store.flush(30)
    assert bits(store.read(info.id)) == expected
    stats = store.stats()
    assert (stats.tiers["disk"].hits, stats.tiers["ram"].hits, stats.tiers["ram"].misses) == (1, 1, 1)
    assert stats.errors == {}


def test_a_file_system_without_direct_writes(open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    set_flags, refused = fcntl.fcntl, []

    def refuse(fd: int, command: int, flags: int = 0) -> int:
        if command == fcntl.F_SETFL and flags & os.O_DIRECT:
            refused.append(fd)
            raise OSError(errno.EINVAL, "Invalid argument")
        return set_flags(fd, command, flags)

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    info, kv = make_entry(3, 5000)
    store = open_store()
    store.put(info, kv)
    store.close()
    assert refused
    assert bits(open_store().read(info.id)) == bits(kv)


def test_any_safetensors_reader_opens_the_file(open_store: OpenStore, root: Path) -> None:
    info, kv = make_entry(2, salt='a secret "salt" \u2603' * 300)  # the header takes more than one page
    store = open_store()
    store.put(info, kv)
    store.close()
    (path,) = entry_files(root)
    with safe_open(path, framework="pt") as file:
        assert set(file.keys()) == {"kv", "tokens"}
        assert bits(file.get_tensor("kv")) == bits(kv)
        assert file.get_tensor("tokens").dtype == torch.int32
        assert file.get_tensor("tokens").tolist() == info.tokens.tolist()
        metadata = file.metadata()
    assert (metadata["model"], metadata["salt"], metadata["position"]) == (
        MODEL,
        info.salt,
        str(info.position),
    )
    assert (8 + int.from_bytes(path.read_bytes()[:8], "little")) % 4096 == 0


def test_private_on_disk(open_store: OpenStore, root: Path) -> None:
    store = open_store()
    store.put(*make_entry(3, salt="tenant"))
    store.flush(30)
    for path in [root, *root.rglob("*")]:
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path
    assert "tenant" not in "".join(map(str, root.rglob("*")))


def test_models_and_salts_live_apart(open_store: OpenStore, root: Path) -> None:
    other = "ef" * 32
    one, two, three = make_entry(1), make_entry(1, salt="tenant"), make_entry(1, model=other)
    store, foreign = open_store(), open_store(model=other)
    store.put(*one)
    store.put(*two)
    foreign.put(*three)
    store.flush(30)
    foreign.flush(30)
    assert len({one[0].id, two[0].id, three[0].id}) == 3
    assert {info.id for info in store.infos()} == {one[0].id, two[0].id}
    assert {info.id for info in foreign.infos()} == {three[0].id}
    assert not store.contains(three[0].id)
    with pytest.raises(EntryMissing):
        store.read(three[0].id)
    assert len({path.parent.parent for path in entry_files(root)}) == 3
    assert bits(open_store().read(two[0].id)) == bits(two[1])


def test_put_twice_is_put_once(open_store: OpenStore, root: Path) -> None:
    info, kv = make_entry(4)
    store = open_store()
    for _ in range(3):
        store.put(info, kv)
        store.flush(30)
    (path,) = entry_files(root)
    written = path.stat().st_mtime_ns
    again = open_store()
    again.put(info, kv)
    assert again.flush(30)
    assert path.stat().st_mtime_ns == written
    assert again.stats().tiers["disk"].entries == 1


def test_missing_contains_remove(open_store: OpenStore, root: Path) -> None:
    lost: list[str] = []
    store = open_store(on_evict=lost.extend)
    entries = [make_entry(seed) for seed in range(4)]
    ids = [info.id for info, _ in entries]
    for info, kv in entries[:3]:
        store.put(info, kv)
    assert store.missing(ids) == ids[3:]
    store.flush(30)
    store.remove(ids[0])
    store.remove(ids[3])
    assert lost == [ids[0]]
    assert store.missing(ids) == [ids[0], ids[3]]
    assert not store.contains(ids[0])
    assert store.contains(ids[1])
    assert len(entry_files(root)) == 2
    assert open_store().missing(ids) == [ids[0], ids[3]]


def test_remove_while_the_write_is_queued(open_store: OpenStore, root: Path) -> None:
    store = open_store()
    for seed in range(20):
        info, kv = make_entry(seed)
        store.put(info, kv)
        store.remove(info.id)
    store.flush(30)
    assert entry_files(root) == []
    assert list(store.infos()) == []


def test_a_slice_is_stored_without_the_rest(open_store: OpenStore) -> None:
    info, kv = make_entry(5, num_tokens=10)
    whole = torch.cat([kv, kv], dim=2)
    store = open_store()
    store.put(info, whole[:, :, 10:])
    assert bits(store.read(info.id)) == bits(kv)
    assert store.stats().tiers["ram"].bytes == 4096 + kv.nbytes + 4 * info.num_tokens


def test_what_does_not_fit_the_store_is_refused(open_store: OpenStore) -> None:
    info, kv = make_entry(6)
    store = open_store()
    with pytest.raises(ValueError, match="shape"):
        store.put(info, kv[:, :, :-1])
    with pytest.raises(ValueError, match="bfloat16"):
        store.put(info, kv.float())
    with pytest.raises(ValueError, match="content address"):
        store.put(EntryInfo("00" * 32, "", info.context, "", 0, info.tokens), kv)
    with pytest.raises(StoreError, match="layout"):
        open_store(layout=EntryLayout(2, 3, 2, 16, torch.float32))
    with pytest.raises(StoreError, match="64 hex"):
        open_store(model="smollm2")


def test_reads_while_writing(open_store: OpenStore) -> None:
    entries = [make_entry(seed) for seed in range(60)]
    expected = {info.id: bits(kv) for info, kv in entries}
    store = open_store(ram=20 * LAYOUT.token_bytes * 50)
    wrong: list[str] = []

    def read_all() -> None:
        for _ in range(5):
            for info, _ in entries:
                try:
                    if bits(store.read(info.id)) != expected[info.id]:
                        wrong.append(info.id)
                except EntryMissing:
                    pass

    threads = [threading.Thread(target=read_all) for _ in range(3)]
    for thread in threads:
        thread.start()
    for info, kv in entries:
        store.put(info, kv)
    for thread in threads:
        thread.join()
    assert store.flush(60)
    assert wrong == []
    assert all(bits(store.read(info.id)) == expected[info.id] for info, _ in entries)
    assert store.stats().errors == {}
