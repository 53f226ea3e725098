"""`agentcache store`, on real files, without an engine."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from agentcache.cli import store_commands
from agentcache.errors import UsageError
from agentcache.store import EntryStore
from agentcache.store.units import human_age, human_bytes, parse_age, parse_bytes

from .conftest import LAYOUT, MODEL, bits, entry_files, make_entry

OTHER = "ef" * 32
FILE_50 = 4096 + 50 * (LAYOUT.token_bytes + 4)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two models, one of them with a salt: 8 + 3 + 4 entries."""
    monkeypatch.setenv("AGENTCACHE_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    root = tmp_path / "store"
    for model, salt, count in ((MODEL, "", 8), (MODEL, "tenant", 3), (OTHER, "", 4)):
        with EntryStore.open(root, model, LAYOUT, 1 << 24, 1 << 26) as opened:
            for seed in range(count):
                opened.put(*make_entry(seed, salt=salt, model=model))
    return root


def agentcache(*arguments: str, code: int = 0) -> str:
    app = typer.Typer()
    store_commands.register(app)
    app.command("other")(lambda: None)
    outcome = CliRunner().invoke(app, ["store", *arguments])
    if isinstance(outcome.exception, UsageError):
        raise outcome.exception
    assert outcome.exit_code == code, outcome.output
    return outcome.output


def test_status(store: Path) -> None:
    told = json.loads(agentcache("status", "--json"))
    assert (told["entries"], told["bytes"], told["open_by"]) == (15, 15 * FILE_50, 0)
    assert [(use["model"], use["entries"]) for use in told["models"]] == [(MODEL, 11), (OTHER, 4)]
    with EntryStore.open(store, MODEL, LAYOUT, 1 << 24, 1 << 26):
        text = agentcache("status")
    assert f"15 entries, {human_bytes(15 * FILE_50)}" in text
    assert MODEL[:16] in text
    assert "open in 1 other process" in text


def test_status_of_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTCACHE_HOME", str(tmp_path / "new"))
    assert json.loads(agentcache("status", "--json"))["entries"] == 0
    assert "0 entries, 0 B" in agentcache("status")


def test_ls(store: Path) -> None:
    listed = json.loads(agentcache("ls", "--json"))
    assert len(listed) == 15
    assert {entry["size_bytes"] for entry in listed} == {FILE_50}
    assert len(json.loads(agentcache("ls", "--json", "-n", "2"))) == 2
    assert len(json.loads(agentcache("ls", "--json", "--model", "ef"))) == 4
    text = agentcache("ls")
    assert make_entry(1)[0].id[:12] in text
    assert "tenant" not in text
    with pytest.raises(UsageError, match="starts with"):
        agentcache("ls", "--model", "123")


def test_verify(store: Path) -> None:
    assert "15 files" in agentcache("verify")
    path = entry_files(store)[3]
    raw = bytearray(path.read_bytes())
    raw[5000] ^= 1
    path.write_bytes(raw)
    told = json.loads(agentcache("verify", "--json", code=1))
    assert [problem["path"] for problem in told["problems"]] == [str(path)]
    assert "1 damaged" in agentcache("verify", "--remove")
    assert not path.exists()
    assert json.loads(agentcache("status", "--json"))["entries"] == 14


def test_gc(store: Path) -> None:
    assert json.loads(agentcache("gc", "--json", "--unused", "1h"))["evicted"] == 0
    entry_files(store)[0].unlink()
    told = json.loads(agentcache("gc", "--json", "--max-size", f"{10 * FILE_50}"))
    assert (told["dropped"], told["evicted"]) == (1, 4)
    assert len(entry_files(store)) == 10
    assert "evicted 10 entries" in agentcache("gc", "--unused", "0s")
    assert entry_files(store) == []


def test_clear(store: Path) -> None:
    assert json.loads(agentcache("clear", "--json", "--salt", "tenant"))["entries"] == 3
    assert json.loads(agentcache("clear", "--json", "--model", OTHER[:6]))["entries"] == 4
    with EntryStore.open(store, MODEL, LAYOUT, 1 << 24, 1 << 26) as opened:
        info, kv = make_entry(1)
        assert bits(opened.read(info.id)) == bits(kv)
        assert "deleted 8 entries" in agentcache("clear", "--shared", "--yes")
        opened.put(*make_entry(20))
        assert opened.flush(30)
    assert len(entry_files(store)) == 1
    agentcache("clear", "--yes")
    other_layout = dataclasses.replace(LAYOUT, heads=1)
    EntryStore.open(store, MODEL, other_layout, 1 << 24, 1 << 26).close()
    with pytest.raises(UsageError, match="exclude"):
        agentcache("clear", "--shared", "--salt", "x", "--yes")


def test_units() -> None:
    sizes = [0, 999, 1000, 1540, 999_499, 999_500, 20_000_000, 3 * 10**12]
    assert [human_bytes(size) for size in sizes] == [
        "0 B", "999 B", "1.0 kB", "1.5 kB", "999 kB", "1.0 MB", "20 MB", "3.0 TB",
    ]  # fmt: skip
    assert [parse_bytes(text) for text in ("2GB", "512 MiB", "1.5k", "7", "1Ti")] == [
        2 * 10**9, 512 << 20, 1500, 7, 1 << 40,
    ]  # fmt: skip
    assert [parse_age(text) for text in ("30d", "1.5h", "2W")] == [30 * 86400, 5400, 14 * 86400]
    assert [human_age(age) for age in (0.2, 45, 7300, 40 * 86400)] == ["0 s", "45 s", "2 h", "40 d"]
    for nonsense in ("", "GB", "2 bananas", "-1", "1ib1", "i"):
        with pytest.raises(UsageError):
            parse_bytes(nonsense)
        with pytest.raises(UsageError):
            parse_age(nonsense)


def test_a_salt_is_deleted_alone_from_memory_too(store: Path) -> None:
    with EntryStore.open(store, MODEL, LAYOUT, 1 << 24, 1 << 26) as opened:
        secret, shared = make_entry(30, salt="tenant"), make_entry(30)
        for entry in (secret, shared):
            opened.put(*entry)
        assert opened.flush(30)
        told = json.loads(agentcache("status", "--json"))
        assert told["ram"]["entries"] == 2
        assert "in shared memory: 2 entries" in agentcache("status")
        assert json.loads(agentcache("clear", "--json", "--salt", "tenant"))["entries"] == 4
        assert opened.missing([secret[0].id, shared[0].id]) == [secret[0].id]
        assert bits(opened.read(shared[0].id)) == bits(shared[1])
    folders = {path.parent.parent.name for path in entry_files(store)}
    assert folders == {"shared"}
