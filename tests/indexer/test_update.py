"""Updates: only what changed is parsed, changes name exactly the blocks they touch, equal content is one."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agentcache.errors import IndexError_
from agentcache.indexer import Block, Index
from agentcache.indexer.identity import block_id, content_id
from agentcache.indexer.load import Loaded, load
from tests.indexer.conftest import Repository, check_tiles, contents

A = "import b\n\n\ndef one():\n    return b.two()\n\n\nclass C:\n    x = 1\n\n    def m(self):\n        return 1\n"


def names(blocks: list[Block]) -> list[str]:
    return [block.qualified_name or block.kind for block in blocks]


def test_identities_are_fixed_for_ever() -> None:
    assert block_id(b"") == "5bacd91086798cef0bb30fa807119732868819f5d7a29b0da8b8dee31c7d1ec1"
    assert (
        block_id(b"def f():\n    pass\n")
        == "03d4f345d01acfba59f2290928e6df82f3fd26311d2ee9bed776813de3066128"
    )
    assert (
        content_id(b"def f():\n    pass\n")
        == "b3f55cd2aa53fd3c306c945a337534d61b490443f9d20b01639ed8ca489a15b2"
    )


def test_identities_are_the_same_in_every_process(
    repository: Repository, open_index: Callable[..., Index]
) -> None:
    repository.write("a.py", A)
    with open_index(repository.root) as index:
        index.update()
        here = [block.id for block in index.blocks("a.py")]
    code = (
        "import sys; from pathlib import Path; from agentcache.indexer import Index\n"
        "index = Index.open(Path(sys.argv[1]), Path(sys.argv[2])); index.update()\n"
        "print(*(block.id for block in index.blocks('a.py')))"
    )
    for seed in ("0", "1"):
        database = repository.root.parent / f"{seed}.db"
        command = [sys.executable, "-c", code, str(repository.root), str(database)]
        there = subprocess.run(
            command, env={**os.environ, "PYTHONHASHSEED": seed}, stdout=subprocess.PIPE, check=True
        )
        assert there.stdout.decode().split() == here


def test_only_what_changed_is_parsed(repository: Repository, open_index: Callable[..., Index]) -> None:
    repository.write("a.py", A)
    repository.write("b.py", "def two():\n    return 2\n")
    index = open_index(repository.root)
    first = index.update()
    assert (first.files, first.parsed_files, first.unchanged_files) == (2, 2, 0)
    assert first.blocks == len(index.blocks("a.py")) + len(index.blocks("b.py"))
    assert (first.bytes, first.languages) == (len(A) + 24, {"python": 2})
    assert {change.path: (len(change.added), change.removed, change.kept) for change in first.changes} == {
        "a.py": (4, [], []),
        "b.py": (1, [], []),
    }
    second = index.update()
    assert (second.parsed_files, second.unchanged_files, second.changes) == (0, 2, [])
    repository.write("a.py", A.replace("return 1", "return 10"))
    third = index.update()
    assert (third.parsed_files, third.unchanged_files) == (1, 1)
    (change,) = third.changes
    assert (names(change.added), names(change.removed)) == (["C.m"], ["C.m"])
    assert names(change.kept) == ["module head", "one", "C"]
    check_tiles(index)


def test_blocks_that_only_moved_are_kept(repository: Repository, open_index: Callable[..., Index]) -> None:
    repository.write("a.py", A)
    index = open_index(repository.root)
    index.update()
    repository.write("a.py", A.replace("import b\n\n\n", "import b\n\n\ndef new():\n    pass\n\n\n"))
    (change,) = index.update().changes
    assert (names(change.added), change.removed) == (["new"], [])
    assert [(block.name, block.start_line) for block in change.kept] == [
        ("", 1),
        ("one", 8),
        ("C", 12),
        ("m", 15),
    ]


def test_equal_blocks_are_counted(repository: Repository, open_index: Callable[..., Index]) -> None:
    repository.write("a.py", "def f():\n    pass\n" * 3)
    index = open_index(repository.root)
    index.update()
    assert len({block.id for block in index.blocks("a.py")}) == 1
    repository.write("a.py", "def f():\n    pass\n" * 2)
    (change,) = index.update().changes
    assert (len(change.added), len(change.removed), len(change.kept)) == (0, 1, 2)


def test_deleted_renamed_and_touched_files(repository: Repository, open_index: Callable[..., Index]) -> None:
    old = repository.write("a.py", A)
    gone = repository.write("gone.py", "x = 1\n")
    index = open_index(repository.root)
    index.update()
    gone.unlink()
    old.rename(repository.root / "moved.py")
    report = index.update()
    assert {change.path: (len(change.added), len(change.removed)) for change in report.changes} == {
        "a.py": (0, 4),
        "gone.py": (0, 1),
        "moved.py": (4, 0),
    }
    assert [record.path for record in index.files()] == ["moved.py"]
    os.utime(repository.root / "moved.py", ns=(1, 1))
    report = index.update()
    assert (report.parsed_files, report.unchanged_files, report.changes) == (0, 1, [])


def test_an_edit_that_leaves_size_and_time_as_they_were(
    repository: Repository, open_index: Callable[..., Index]
) -> None:
    full = repository.write("a.py", "x = 1\n")
    index = open_index(repository.root)
    index.update()
    before = full.stat()
    for number in range(2, 10):
        full.write_text(f"x = {number}\n")
        os.utime(full, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert len(index.update().changes) == 1
        assert index.read("a.py") == full.read_bytes()


def test_a_file_written_just_before_it_was_read_is_racy(tmp_path: Path) -> None:
    full = tmp_path / "a.py"
    full.write_text("x = 1\n")
    loaded = load(str(tmp_path), "a.py", 1000)
    assert isinstance(loaded, Loaded)
    assert loaded.racy
    deadline = time.monotonic() + 10
    while loaded.racy and time.monotonic() < deadline:
        time.sleep(0.02)
        again = load(str(tmp_path), "a.py", 1000)
        assert isinstance(again, Loaded)
        loaded = again
    assert not loaded.racy


def test_switching_branches_and_undo_parse_nothing_twice(
    repository: Repository, open_index: Callable[..., Index]
) -> None:
    repository.write("a.py", A)
    repository.commit()
    repository.git("checkout", "-q", "-b", "other")
    repository.write("a.py", A.replace("one", "uno"))
    repository.commit()
    index = open_index(repository.root)
    seen = {}
    for branch in ("other", "main", "other", "main"):
        repository.git("checkout", "-q", branch)
        index.update()
        seen.setdefault(branch, contents(index))
        assert seen[branch] == contents(index)
    count = index._database.connection.execute("SELECT count(*) FROM content").fetchone()
    assert count == (2,)


def test_equal_content_is_one_in_files_branches_and_worktrees(
    repository: Repository, open_index: Callable[..., Index]
) -> None:
    repository.write("a.py", A)
    repository.write("deep/copy.py", A)
    repository.commit()
    other = repository.root.parent / "worktree"
    repository.git("worktree", "add", "-q", str(other))
    index, elsewhere = open_index(repository.root), open_index(other, "worktree")
    index.update()
    elsewhere.update()
    ids = [block.id for block in index.blocks("a.py")]
    assert [block.id for block in index.blocks("deep/copy.py")] == ids
    assert [block.id for block in elsewhere.blocks("a.py")] == ids
    assert index._database.connection.execute("SELECT count(*) FROM content").fetchone() == (1,)
    checkout = elsewhere.checkout()
    assert checkout is not None
    assert checkout.git_dir == repository.root / ".git" / "worktrees" / "worktree"
    assert sorted(checkout.worktrees()) == sorted([repository.root, other])
    assert checkout.head().startswith("ref: refs/heads/worktree ")
    assert len(checkout.head().split()[-1]) == 40


def test_reading_a_file_that_changed_is_refused(
    repository: Repository, open_index: Callable[..., Index]
) -> None:
    full = repository.write("a.py", A)
    index = open_index(repository.root)
    index.update()
    assert index.read("a.py") == A.encode()
    full.write_text(A + "\n")
    with pytest.raises(IndexError_, match="has changed since"):
        index.read("a.py")
    index.update()
    assert index.read("a.py") == full.read_bytes()
    full.unlink()
    with pytest.raises(IndexError_, match="has changed since"):
        index.read("a.py")
    with pytest.raises(IndexError_, match="not in the index"):
        index.blocks("b.py")


def test_a_snapshot_is_of_one_moment(repository: Repository, open_index: Callable[..., Index]) -> None:
    full = repository.write("a.py", A)
    index = open_index(repository.root)
    index.update()
    done = threading.Event()

    def edit() -> None:
        version = 0
        while not done.is_set():
            version += 1
            full.write_text("# more\n\n" * (version % 7) + A)
            index.refresh(["a.py"])

    editor = threading.Thread(target=edit)
    editor.start()
    taken = 0
    try:
        for _ in range(300):
            try:
                data, blocks = index.snapshot("a.py")
            except IndexError_:
                continue
            taken += 1
            assert blocks[-1].end_byte == len(data)
            assert [block.id for block in blocks] == [
                block_id(data[b.start_byte : b.end_byte]) for b in blocks
            ]
    finally:
        done.set()
        editor.join()
    index.refresh(["a.py"])
    assert index.snapshot("a.py")[0] == full.read_bytes()


def test_refresh_looks_at_what_it_is_told(repository: Repository, open_index: Callable[..., Index]) -> None:
    repository.write("a.py", A)
    repository.write("b.py", "x = 1\n")
    repository.write(".gitignore", "junk/\n")
    repository.write("junk/z.py", "")
    index = open_index(repository.root)
    index.update()
    repository.write("a.py", A + "y = 2\n")
    repository.write("b.py", "x = 2\n")
    repository.write("junk/z.py", "z = 1\n")
    assert [change.path for change in index.refresh(["a.py", "junk/z.py", "never.py"])] == ["a.py"]
    assert [change.path for change in index.refresh(["b.py"])] == ["b.py"]
    repository.write("new.py", "")
    repository.write("b.py", "x = 3\n")
    assert [change.path for change in index.refresh(["new.py"])] == ["b.py"]
    assert index.blocks("new.py") == []
    (repository.root / "b.py").unlink()
    assert [change.path for change in index.refresh(["b.py"])] == ["b.py"]
    repository.write(".gitignore", "junk/\na.py\n")
    assert [change.path for change in index.refresh([".gitignore"])] == [".gitignore", "a.py"]


def test_progress_reaches_its_end(repository: Repository, open_index: Callable[..., Index]) -> None:
    for number in range(200):
        repository.write(f"m{number}.py", f"def f{number}():\n    return {number}\n")
    seen = []
    open_index(repository.root).update(seen.append)
    assert (seen[0].files, seen[0].eta_seconds) == (0, None)
    assert (seen[-1].files, seen[-1].bytes) == (200, seen[-1].total_bytes)
    assert seen[-1].total_files == 200
    assert seen[-1].bytes_per_second > 0
