"""A small layout and entries with random tokens: what every store test needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agentcache.entry import EntryInfo, as_tokens, context_digest, entry_id
from agentcache.store import EntryLayout, EntryStore

MODEL = "ab" * 32
LAYOUT = EntryLayout(parts=2, layers=3, heads=2, head_dim=16, dtype=torch.bfloat16)

Entry = tuple[EntryInfo, torch.Tensor]
MakeEntry = Callable[..., Entry]
OpenStore = Callable[..., EntryStore]


def make_entry(
    seed: int, num_tokens: int = 50, salt: str = "", model: str = MODEL, layout: EntryLayout = LAYOUT
) -> Entry:
    """An entry that is a function of its arguments alone, so that another process can make the same."""
    random = np.random.default_rng(seed)
    tokens = as_tokens(random.integers(0, 50_000, num_tokens))
    left = as_tokens(random.integers(0, 50_000, seed % 7))
    context = context_digest(left)
    id = entry_id(model, salt, context, tokens)
    generator = torch.Generator().manual_seed(seed)
    kv = torch.randn(layout.shape(num_tokens), generator=generator).to(layout.dtype)
    return EntryInfo(id, salt, context, "cd" * 32 if seed % 2 else "", len(left), tokens), kv


def bits(kv: torch.Tensor) -> bytes:
    return kv.contiguous().view(torch.uint8).numpy().tobytes()


def facts(info: EntryInfo) -> tuple[Any, ...]:
    """An `EntryInfo` as a value that compares."""
    return (info.id, info.salt, info.context, info.parent, info.position, tuple(info.tokens.tolist()))


def entry_files(root: Path) -> list[Path]:
    return sorted(root.glob("*/*/??/*.safetensors"))


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[OpenStore]:
    """Opens stores in one root and closes them in the end."""
    opened: list[EntryStore] = []

    def open_(
        model: str = MODEL, layout: EntryLayout = LAYOUT, ram: int = 1 << 24, disk: int = 1 << 26, **more: Any
    ):
        opened.append(EntryStore.open(tmp_path / "store", model, layout, ram, disk, **more))
        return opened[-1]

    yield open_
    for store in opened:
        store.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"
