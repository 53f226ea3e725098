"""Smaller files: as small as promised, close to what was put, readable whatever a store writes now."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from agentcache.errors import UsageError
from agentcache.store import EntryCorrupt, EntryLayout
from agentcache.store.codecs import CODECS, codec_named, num_bytes

from .conftest import OpenStore, bits, entry_files, make_entry

WIDE = EntryLayout(parts=2, layers=3, heads=2, head_dim=64, dtype=torch.bfloat16)
SMALLER = {"raw": 1.0, "int8": 1.9, "fp8": 1.95, "mixed": 2.4, "int4": 3.3}
ERROR = {"raw": 0.0, "int8": 0.01, "fp8": 0.05, "mixed": 0.1, "int4": 0.12}


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("num_tokens", [1, 200])
def test_every_codec_through_disk_and_restart(
    open_store: OpenStore, root: Path, name: str, dtype: torch.dtype, num_tokens: int
) -> None:
    layout = EntryLayout(2, 3, 2, 64, dtype)
    info, kv = make_entry(1, num_tokens, layout=layout)
    store = open_store(layout=layout, disk_codec=name)
    store.put(info, kv)
    store.close()
    (path,) = entry_files(root)
    size = num_bytes(CODECS[name], layout, num_tokens)
    if num_tokens == 200 and dtype == torch.bfloat16:
        assert kv.nbytes / size >= SMALLER[name]
    with safe_open(path, framework="pt") as file:
        assert sum(file.get_tensor(key).nbytes for key in file.keys()) == size + 4 * num_tokens  # noqa: SIM118
        assert file.metadata()["codec"] == name
    back = open_store(layout=layout).read(info.id)
    assert (back.dtype, back.shape) == (kv.dtype, kv.shape)
    error = (back.float() - kv.float()).square().mean().sqrt() / kv.float().square().mean().sqrt()
    assert error <= ERROR[name]
    if name == "raw":
        assert bits(back) == bits(kv)


def test_one_store_holds_entries_of_every_codec(open_store: OpenStore) -> None:
    ids = []
    for seed, name in enumerate(CODECS):
        store = open_store(layout=WIDE, disk_codec=name)
        info, kv = make_entry(seed, layout=WIDE)
        store.put(info, kv)
        store.close()
        ids.append(info.id)
    store = open_store(layout=WIDE)
    assert len(list(store.infos())) == len(ids)
    for seed, id in enumerate(ids):
        assert torch.allclose(store.read(id).float(), make_entry(seed, layout=WIDE)[1].float(), atol=0.5)


@pytest.mark.parametrize("name", ["fp8", "int4"])
def test_damage_in_any_part_is_found(open_store: OpenStore, root: Path, name: str) -> None:
    info, kv = make_entry(1, layout=WIDE)
    for at in (4096, 4200, 6000, -1):
        store = open_store(layout=WIDE, disk_codec=name)
        store.put(info, kv)
        store.close()
        (path,) = entry_files(root)
        raw = bytearray(path.read_bytes())
        raw[at] ^= 4
        path.write_bytes(raw)
        store = open_store(layout=WIDE)
        with pytest.raises(EntryCorrupt):
            store.read(info.id)
        store.close()


def test_names() -> None:
    with pytest.raises(UsageError, match="one of raw, int8"):
        codec_named("zip", WIDE)
    assert codec_named("int4", WIDE).name == "int4"
    assert codec_named("int4", EntryLayout(1, 3, 1, 64, torch.bfloat16)).name == "raw"


def test_the_settings_name_every_codec() -> None:
    from agentcache.settings import CODEC_NAMES

    assert set(CODEC_NAMES) == set(CODECS)
