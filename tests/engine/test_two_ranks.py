"""Tensor parallelism: each rank keeps its own heads of every entry, and all do the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentcache.store.ranks import rank_root, rank_roots, rank_url
from tests.parity.tiny import Tiny, write

ROOT = Path(__file__).resolve().parents[2]
EQUAL = 1e-3
FAR = 1e-2


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """The store, and what `two_ranks` prints for two starts on it."""
    folder = tmp_path_factory.mktemp("two-ranks")
    write(Tiny("LlamaConfig", {}), folder / "model")
    printed = []
    for what in ("first", "again"):
        with (folder / f"log {what}").open("wb") as log:
            done = subprocess.run(
                [
                    *(sys.executable, "-m", "tests.engine.two_ranks"),
                    *(str(folder / "model"), str(folder / "store"), what),
                ],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=log,
                check=False,
                timeout=1000,
            )
        assert done.returncode == 0, (folder / f"log {what}").read_text()[-3000:]
        printed.append(json.loads(done.stdout.decode().strip().splitlines()[-1]))
    return folder / "store", printed


@pytest.mark.engine
@pytest.mark.parametrize("start", [0, 1], ids=["entries just made", "entries found at start"])
def test_two_ranks_blend_as_one_would(starts: tuple[Path, list[dict[str, Any]]], start: int) -> None:
    own = starts[1][start]
    assert own["all"] < EQUAL
    assert own["in place"] < EQUAL
    assert own["none"] > FAR
    assert (own["all, tokens"], own["in place, tokens"], own["scored, tokens"]) == (680, 750, 136)
    assert [one["unsupported"] for one in own["status"]] == ["", ""]
    assert own["status"][0]["fingerprint"] == own["status"][1]["fingerprint"], "an entry has one name"


@pytest.mark.engine
def test_each_rank_has_a_store_of_its_own(starts: tuple[Path, list[dict[str, Any]]]) -> None:
    """The same entries by name, of different content."""
    roots = rank_roots(starts[0])
    assert [root.name for root in roots] == ["store", "rank-1"]
    first, second = ({path.name: path for path in root.glob("[0-9a-f]*/*/*/*.safetensors")} for root in roots)
    assert len(first) == 3
    assert second.keys() < first.keys(), "one was taken from the second rank"
    assert all(first[name].read_bytes() != second[name].read_bytes() for name in second)


@pytest.mark.engine
def test_what_one_rank_has_lost_is_computed_by_both(starts: tuple[Path, list[dict[str, Any]]]) -> None:
    own = starts[1][1]
    assert own["missing"] == [0, 1]
    assert own["one rank lost an entry"] < EQUAL
    assert own["holed"]["reused_tokens"] == 500
    assert own["holed"]["fallback"] == ""


def test_where_ranks_keep_their_entries() -> None:
    assert rank_root(Path("/s"), 0) == Path("/s")
    assert rank_root(Path("/s"), 3) == Path("/s/rank-3")
    assert rank_url("", 1) == ""
    s3 = "s3://bucket/prefix?endpoint=http://h:9000"
    assert rank_url(s3, 0) == s3
    assert rank_url(s3, 1) == "s3://bucket/prefix/rank-1?endpoint=http://h:9000"
    assert rank_url("redis://h:6379/0", 1) == "redis://h:6379/0?prefix=agentcache%3Arank-1"
