"""Soak: a tree that is edited, renamed, deleted and switched at random while it is watched, and checked on the way.

`AGENTCACHE_SOAK_S` sets for how long (20 s unless set, 60 s at most), `AGENTCACHE_SOAK_SEED` what happens.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from agentcache.indexer import ChangeRecord, Index, Watcher
from agentcache.indexer.languages import GRAMMARS, SECTIONED
from tests.indexer.conftest import Repository, check_tiles, contents

SAMPLES = sorted((Path(__file__).parents[2] / "fixtures" / "languages").iterdir())
SUFFIXES = (
    [language.suffixes[0] for language in GRAMMARS]
    + [suffixes[0] for suffixes in SECTIONED.values()]
    + [".txt"]
)
SOAK_S = min(60.0, float(os.environ.get("AGENTCACHE_SOAK_S", "20")))
SEED = int(os.environ.get("AGENTCACHE_SOAK_SEED", str(time.time_ns() % 2**32)))
PATIENCE_S = 60.0


class Chaos:
    """One random thing after the other, done to a repository."""

    def __init__(self, repository: Repository, rng: random.Random) -> None:
        self._repository = repository
        self._root = repository.root
        self._rng = rng
        self._branches = ["main"]

    def step(self) -> None:
        doings = [self.edit] * 8 + [self.save_atomically] * 3 + [self.create] * 4 + [self.delete] * 2
        doings += [self.rename] * 2 + [self.move_folder, self.delete_folder, self.ignore, self.commit]
        doings += [self.switch] * 2 + [self.stash]
        self._rng.choice(doings)()

    def files(self) -> list[Path]:
        return [path for path in self._root.rglob("*") if path.is_file() and ".git" not in path.parts]

    def folders(self) -> list[Path]:
        return [path for path in self._root.rglob("*") if path.is_dir() and ".git" not in path.parts]

    def text(self) -> bytes:
        data = self._rng.choice(SAMPLES).read_bytes()
        lines = data.splitlines(keepends=True)
        at, other = sorted((self._rng.randrange(len(lines)), self._rng.randrange(len(lines))))
        kind = self._rng.randrange(4)
        if kind == 0:
            return b"".join(lines[:at] + lines[other:])
        if kind == 1:
            return b"".join([*lines[:at], b'x = """ ( { \n', *lines[at:]])
        if kind == 2:
            return data.replace(b"1", b"%d" % self._rng.randrange(1000))
        return data

    def edit(self) -> None:
        if files := self.files():
            self._rng.choice(files).write_bytes(self.text())

    def save_atomically(self) -> None:
        if files := self.files():
            path = self._rng.choice(files)
            temporary = path.with_name(f".{path.name}.{self._rng.randrange(1000)}.tmp")
            temporary.write_bytes(self.text())
            temporary.replace(path)

    def create(self) -> None:
        folder = self._root.joinpath(*(self._rng.choice("abc") for _ in range(self._rng.randrange(4))))
        path = folder / f"f{self._rng.randrange(30)}{self._rng.choice(SUFFIXES)}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.text())
        except OSError:
            pass  # there is a file where a folder should be, or the other way round

    def delete(self) -> None:
        if files := self.files():
            self._rng.choice(files).unlink()

    def rename(self) -> None:
        if files := self.files():
            path = self._rng.choice(files)
            path.replace(path.with_name(f"r{self._rng.randrange(30)}{self._rng.choice(SUFFIXES)}"))

    def move_folder(self) -> None:
        if folders := self.folders():
            folder = self._rng.choice(folders)
            target = self._root / f"moved{self._rng.randrange(5)}"
            if not target.exists():
                folder.rename(target)

    def delete_folder(self) -> None:
        if folders := self.folders():
            shutil.rmtree(self._rng.choice(folders))

    def ignore(self) -> None:
        name = self._rng.choice([".gitignore", ".agentcacheignore"])
        path = self._rng.choice([self._root, *self.folders()]) / name
        if path.exists():
            path.unlink()
        else:
            path.write_text(f"*{self._rng.choice(SUFFIXES)}\n")

    def commit(self) -> None:
        self._repository.commit()

    def switch(self) -> None:
        self._repository.commit()
        if len(self._branches) < 4:
            self._branches.append(f"b{len(self._branches)}")
            self._repository.git("checkout", "-q", "-b", self._branches[-1])
        else:
            self._repository.git("checkout", "-q", self._rng.choice(self._branches))

    def stash(self) -> None:
        self._repository.git("add", "-A")
        if self._repository.git("status", "--porcelain"):
            self._repository.git("stash", "push", "-q")
            if self._rng.random() < 0.5:
                self._repository.git("stash", "pop", "-q")


def test_after_any_changes_the_index_equals_a_fresh_one(
    repository: Repository, tmp_path: Path, open_index: Callable[..., Index]
) -> None:
    print(f"seed {SEED}")
    rng = random.Random(SEED)
    chaos = Chaos(repository, rng)
    for _ in range(60):
        chaos.create()
    repository.commit()
    index = open_index(repository.root)
    mirror: dict[str, Counter[str]] = {}

    def follow(changes: list[ChangeRecord]) -> None:
        """Keep up by change records alone."""
        for change in changes:
            have = mirror.setdefault(change.path, Counter())
            kept = Counter(block.id for block in change.kept)
            assert have == kept + Counter(block.id for block in change.removed)
            mirror[change.path] = kept + Counter(block.id for block in change.added)

    watcher = Watcher(index, follow, reconcile_s=5)
    watcher.start()
    assert watcher.wait_ready(PATIENCE_S)
    end = time.monotonic() + SOAK_S
    try:
        while time.monotonic() < end:
            for _ in range(rng.randrange(1, 40)):
                chaos.step()
                if rng.random() < 0.3:
                    time.sleep(rng.random() * 0.05)
            expect_equal(index, repository, tmp_path, mirror)
    finally:
        watcher.stop()
    check_tiles(index)


def expect_equal(
    index: Index, repository: Repository, tmp_path: Path, mirror: dict[str, Counter[str]]
) -> None:
    """Wait until the index, and what its change records add up to, equal a fresh index."""
    database = tmp_path / "fresh.db"
    for suffix in ("", "-wal", "-shm"):
        Path(f"{database}{suffix}").unlink(missing_ok=True)
    with Index.open(repository.root, database) as fresh:
        fresh.update(changes=False)
        expected, left_out = contents(fresh), fresh.left_out()
        ids = {
            record.path: Counter(block.id for block in fresh.blocks(record.path)) for record in fresh.files()
        }
    deadline = time.monotonic() + PATIENCE_S
    while True:
        followed = {path: found for path, found in mirror.items() if found}
        if contents(index) == expected and followed == {path: found for path, found in ids.items() if found}:
            break
        assert time.monotonic() < deadline, f"seed {SEED}: the index stayed different"
        time.sleep(0.05)
    assert {path for path, _ in index.left_out()} >= {
        path for path, reason in left_out if reason != "ignored"
    }
