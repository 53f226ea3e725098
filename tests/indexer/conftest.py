"""A folder with a real git repository, and indexes that do not outlive their test."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentcache.errors import IndexError_
from agentcache.indexer import Index, IndexSettings


class Repository:
    """A git repository to be written to, by its own git with none of the user's settings."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        self.git("init", "-q", "-b", "main")

    def git(self, *arguments: str, cwd: Path | None = None) -> str:
        environment = {
            **os.environ,
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_CONFIG_SYSTEM": "/dev/null",
            "GIT_AUTHOR_NAME": "a",
            "GIT_AUTHOR_EMAIL": "a@example.org",
            "GIT_COMMITTER_NAME": "a",
            "GIT_COMMITTER_EMAIL": "a@example.org",
        }
        done = subprocess.run(
            ["git", "-c", "protocol.file.allow=always", *arguments],
            cwd=cwd or self.root,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def write(self, path: str, data: str | bytes) -> Path:
        full = self.root / path
        full.parent.mkdir(parents=True, exist_ok=True)
        full.write_bytes(data.encode() if isinstance(data, str) else data)
        return full

    def commit(self, message: str = "x") -> None:
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", message)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository")


@pytest.fixture
def open_index(tmp_path: Path) -> Iterator[Callable[..., Index]]:
    """Opens indexes whose databases lie next to the repository, and closes them."""
    opened: list[Index] = []

    def open_(root: Path, name: str = "index", settings: IndexSettings | None = None) -> Index:
        index = Index.open(root, tmp_path / "databases" / f"{name}.db", settings)
        opened.append(index)
        return index

    yield open_
    for index in opened:
        index.close()


def check_tiles(index: Index) -> None:
    """Every file's blocks cover its bytes exactly once, from line start to line start."""
    for record in index.files():
        data = index.read(record.path)
        blocks = index.blocks(record.path)
        assert len(blocks) == record.num_blocks
        assert b"".join(data[block.start_byte : block.end_byte] for block in blocks) == data
        assert all(
            block.start_byte == 0 or data[block.start_byte - 1 : block.start_byte] == b"\n"
            for block in blocks
        )


def contents(index: Index) -> dict[str, object] | None:
    """All that two equal indexes have in common; None if an update went on in the middle."""
    try:
        return {record.path: (record, index.blocks(record.path)) for record in index.files()}
    except IndexError_:
        return None
