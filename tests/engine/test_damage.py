"""Entry files that are damaged while the server runs: a miss, a right answer, a counted reason."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path

import pytest

from agentcache.store.ram import ram_folder
from tests.engine.serving import Server, largest_difference

pytestmark = pytest.mark.engine


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-5000] ^= 0x10
    path.write_bytes(raw)


@pytest.mark.parametrize(
    ("module", "damage", "reason"),
    [
        ("csv", truncate, "entry corrupt"),
        ("heapq", flip, "entry corrupt"),
        ("cmd", Path.unlink, "entry missing"),
    ],
    ids=["truncated", "bit flipped", "deleted"],
)
def test_a_damaged_entry_is_computed_instead(
    server: Server,
    texts: dict[str, list[int]],
    module: str,
    damage: Callable[[Path], None],
    reason: str,
) -> None:
    code = server.encode(inspect.getsource(importlib.import_module(module)))[:300]
    prompt = texts["system"] + code + texts["question"]
    exact = server.ask(prompt, mode="exact")
    known = set(server.store_dir.rglob("*.safetensors"))
    server.store(code)
    (victim,) = set(server.store_dir.rglob("*.safetensors")) - known
    intact = server.ask(prompt, salt="intact", mode="fast", strategy="none")
    assert intact.counters["reused_tokens"] == 300
    assert largest_difference(intact.first, exact.first) > 1e-2, "reused K/V can be told from computed K/V"
    evict_from_ram(server, victim)
    before = server.reason(reason)
    damage(victim)

    answer = server.ask(prompt, salt="damaged", mode="fast", strategy="none")
    assert server.reason(reason) == before + 1
    assert answer.counters["reused_tokens"] == 0
    assert answer.tokens == exact.tokens
    assert largest_difference(answer.first, exact.first) < 1e-3

    again = server.ask(prompt, salt="again", mode="fast")
    assert (again.counters["reused_tokens"], server.reason(reason)) == (0, before + 1), (
        "forgotten, not tried again"
    )
    server.store(code)
    healed = server.ask(prompt, salt="healed", mode="fast")
    assert healed.counters["reused_tokens"] > 250, "computing it again brings it back"


def evict_from_ram(server: Server, entry: Path) -> None:
    """Delete the copy in shared memory, as eviction does."""
    folder, _ = ram_folder(server.store_dir, 0)
    (folder / entry.relative_to(server.store_dir)).unlink()
