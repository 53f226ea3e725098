"""One file's trouble is one line in the report, and costs no other file anything."""

from __future__ import annotations

import os
import random
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentcache.errors import IndexError_
from agentcache.indexer import Index, IndexSettings
from agentcache.indexer.languages import BY_NAME
from agentcache.indexer.load import LeftOut, Loaded, Trouble, load
from agentcache.indexer.pool import HERE_MAX_BYTES, Job, parse_all
from tests.indexer.conftest import Repository, check_tiles

GOOD = "def good():\n    return 1\n"


_NOT_OURS: set[int] = set()


@pytest.fixture(autouse=True)
def _other_children() -> None:
    """The session's engine, where it runs, is a child of this process, too: none of these tests' business."""
    _NOT_OURS.clear()
    _NOT_OURS.update(children())


def children() -> list[int]:
    """Processes this thread has started since the test began."""
    listed = Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split()
    return [int(pid) for pid in listed if int(pid) not in _NOT_OURS]


@pytest.mark.parametrize("with_git", [True, False])
def test_all_kinds_of_trouble_at_once(
    with_git: bool, tmp_path: Path, open_index: Callable[..., Index]
) -> None:
    root = tmp_path / "tree"
    root.mkdir()
    files = {
        b"latin1.py": "# ü\nx = 1\n".encode("latin-1"),
        b"utf16.py": "def f():\n    pass\n".encode("utf-16"),
        b"bom.py": b"\xef\xbb\xbf" + GOOD.encode(),
        b"nul.py": b"x = 1\0\n" + GOOD.encode() * 20,
        b"cr.py": b"def a():\r    pass\rdef b():\r    pass\r",
        b"crlf.py": b"def a():\r\n    pass\r\n\r\ndef b():\n    pass\n",
        b"empty.py": b"",
        b"no_end.py": b"def f():\n    pass",
        b"half.py": b"def f(:\n    x = [\n\nclass",
        b"nested.py": b"(" * 5000 + b")" * 5000 + b"\n",
        b"nested.js": b"f(function(){" * 5000,
        b"nested.json": b"[" * 5000 + b"]" * 5000,
        b"nested.c": b"{" * 5000,
        b"classes.py": b"".join(b" " * depth + b"class C:\n" for depth in range(1200))
        + b" " * 1200
        + b"x = 1\n",
        b"indented.py": b"".join(b" " * depth + b"if x:\n" for depth in range(1200))
        + b" " * 1200
        + b"x = 1\n",
        b"new\nline.py": GOOD.encode(),
        b"tab\tquote'\".py": GOOD.encode(),
        b"not-utf8-\xff.py": GOOD.encode(),
        b" spaces .py": GOOD.encode(),
        b"-dash.py": GOOD.encode(),
        b":colon.py": GOOD.encode(),
        "ünïcode.py".encode(): GOOD.encode(),
        b"good.py": GOOD.encode(),
    }
    for name, data in files.items():
        (root / os.fsdecode(name)).write_bytes(data)
    if with_git:
        Repository(root).commit()
    index = open_index(root)
    report = index.update()
    assert {record.path for record in index.files()} == {os.fsdecode(name) for name in files}
    assert report.errors == []
    check_tiles(index)
    for record in index.files():
        assert index.read(record.path) == files[os.fsencode(record.path)]
    assert [block.name for block in index.blocks("crlf.py")] == ["a", "b"]
    assert [block.name for block in index.blocks("not-utf8-\udcff.py")] == ["good"]
    assert len(index.find("good")) == 9 + 20
    assert index.update().parsed_files == 0


def test_a_fifty_megabyte_line(tmp_path: Path, open_index: Callable[..., Index]) -> None:
    (tmp_path / "tree").mkdir()
    with (tmp_path / "tree" / "line.js").open("wb") as file:
        file.write(b"a = 1;" * (50_000_000 // 6))
    (tmp_path / "tree" / "good.py").write_text(GOOD)
    index = open_index(tmp_path / "tree")
    assert index.update().skipped == {"too_large": 1}
    assert [record.path for record in index.files()] == ["good.py"]
    large = open_index(tmp_path / "tree", "large", IndexSettings(max_file_bytes=60_000_000, workers=1))
    report = large.update()
    assert [record.path for record in large.files()] == ["good.py", "line.js"]
    assert [block.end_line for block in large.blocks("line.js")] == [1]
    assert [problem.path for problem in report.errors] in ([], ["line.js"])
    # As text, it is one window.
    (tmp_path / "tree" / "line.js").rename(tmp_path / "tree" / "line.txt")
    large.update()
    check_tiles(large)


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """A folder anybody may write; root, who may read everything, is somebody else meanwhile."""
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        if user == 0:
            os.seteuid(65534)
        try:
            yield Path(name)
        finally:
            os.seteuid(user)


def test_unreadable_files_and_folders(unprivileged: Path) -> None:
    root = unprivileged / "root"
    (root / "folder").mkdir(parents=True)
    for path in ("good.py", "locked.py", "folder/a.py"):
        (root / path).write_text(GOOD)
    (root / "locked.py").chmod(0)
    (root / "folder").chmod(0)
    with Index.open(root, unprivileged / "index.db") as index:
        report = index.update()
        assert [record.path for record in index.files()] == ["good.py"]
        assert report.errors == [
            ("folder/", "cannot be read: permission denied"),
            ("locked.py", "cannot be read: permission denied"),
        ]
        (root / "folder").chmod(0o755)
        (root / "locked.py").chmod(0o644)
        report = index.update()
        assert (report.errors, report.files) == ([], 3)


@pytest.mark.parametrize("name", [".gitignore", ".agentcacheignore"])
def test_ignore_files_full_of_nonsense(name: str, tmp_path: Path, open_index: Callable[..., Index]) -> None:
    root = tmp_path / "tree"
    root.mkdir()
    (root / name).write_bytes(
        b"[[a]\n[a--b]\n[\n\\\n!\n***\n/\n[z-a]\n\xff\xfe\n**/[\nx[[:foo:]]\na{1,\n(\nb.py\n"
    )
    (root / "a.py").write_text(GOOD)
    (root / "b.py").write_text(GOOD)
    index = open_index(root)
    assert index.update().errors == []
    assert "b.py" not in [record.path for record in index.files()]


def test_a_file_that_changes_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    done = threading.Event()
    path.write_text("x" * 100)

    def scribble() -> None:
        rng = random.Random(1)
        while not done.is_set():
            path.write_text(rng.choice("xy") * rng.randrange(1, 200_000))

    writer = threading.Thread(target=scribble)
    writer.start()
    try:
        found = [load(str(tmp_path), "a.py", 1_000_000) for _ in range(200)]
    finally:
        done.set()
        writer.join()
    for one in found:
        if isinstance(one, Loaded):
            assert len(one.data) == one.info.st_size
        else:
            assert one == Trouble("it kept changing while it was read")


def test_what_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "big").write_bytes(b"x" * 100)
    (tmp_path / "link").symlink_to("big")
    os.mkfifo(tmp_path / "pipe")
    assert load(str(tmp_path), "gone", 10) == Trouble("it is gone", gone=True)
    assert load(str(tmp_path), "big/below", 10) == Trouble("it is gone", gone=True)
    assert load(str(tmp_path), "big", 10) == LeftOut("too_large")
    assert load(str(tmp_path), "folder", 10) == LeftOut("special_file")
    assert load(str(tmp_path), "pipe", 10) == LeftOut("special_file")
    assert isinstance(load(str(tmp_path), "link", 1000), Trouble)


def test_a_root_that_disappears(repository: Repository, open_index: Callable[..., Index]) -> None:
    repository.write("a.py", GOOD)
    index = open_index(repository.root)
    index.update()
    away = repository.root.rename(repository.root.parent / "away")
    with pytest.raises(IndexError_, match="cannot be listed"):
        index.update()
    assert len(index.blocks("a.py")) == 1
    away.rename(repository.root)
    assert index.update().unchanged_files == 1


@pytest.mark.parametrize("what", ["missing", "file"])
def test_a_root_that_is_no_folder(what: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(IndexError_, match="give the path of a repository or folder"):
        Index.open(tmp_path / what, tmp_path / "x.db")


def jobs(count: int, size: int = 30_000) -> list[Job]:
    source = GOOD * (size // len(GOOD))
    return [
        Job((str(number), "python"), "python", f"# {number}\n{source}".encode()) for number in range(count)
    ]


def test_the_pool_answers_every_job_once() -> None:
    wanted = [*jobs(200, 8_000), *jobs(3, 700_000)]
    found = list(parse_all(iter(wanted), 2))
    assert sorted(job.data for job, _ in found) == sorted(job.data for job in wanted)
    for job, parsed in found:
        assert parsed.note == ""
        assert parsed.blocks[-1].end_byte == len(job.data)
    assert children() == []


def test_few_files_start_no_process() -> None:
    found = parse_all(iter(jobs(5)), 2)
    next(found)
    assert children() == []
    assert len(list(found)) == 4


def test_a_parser_that_crashes_costs_one_file() -> None:
    wanted = jobs(200, 12_000)

    def source() -> Iterator[Job]:
        for number, job in enumerate(wanted):
            if number in (100, 150):
                os.kill(children()[0], 9)
            yield job

    found = {job.key[0]: parsed for job, parsed in parse_all(source(), 2)}
    crashed = [parsed for parsed in found.values() if parsed.note]
    assert len(found) == 200
    assert 1 <= len(crashed) <= 2
    assert all(
        parsed.note == "the parser crashed (exit status -9), kept as line windows" for parsed in crashed
    )
    assert all(parsed.blocks for parsed in crashed)
    assert children() == []


def test_a_parser_that_hangs_costs_one_file() -> None:
    # The alarm comes 5 s after the budget is over, this one is over at once, and text looks at no clock.
    slow = Job(("slow", "text"), "text", b"a\n" * 1_000_000)
    found = list(parse_all(iter([slow, *jobs(3, 100)]), 1, budget_s=-4.9))
    notes = {job.key[0]: parsed.note for job, parsed in found}
    assert notes["slow"] == "parsing hung, kept as line windows"
    assert len(notes) == 4


@pytest.mark.parametrize("language", BY_NAME)
def test_a_budget_ends_a_parse(language: str) -> None:
    from agentcache.indexer.parse import parse_bytes

    rng = random.Random(5)
    data = b"".join(
        rng.choice([b"{ ", b"( ", b"a ", b"= ", b"; ", b"<", b'" ', b"\n"]) for _ in range(60_000)
    )
    data = b"<?php\n" + data if language == "php" else data
    parsed = parse_bytes(data, language, budget_s=0.02)
    assert parsed.note == "parsing took longer than 0.02 s, kept as line windows"
    assert parsed.blocks[-1].end_byte == len(data)


def test_threads_may_parse_at_once() -> None:
    from concurrent.futures import ThreadPoolExecutor

    from agentcache.indexer.parse import parse_bytes

    data = [(f"# {number}\n" + GOOD * 600).encode() for number in range(40)]
    expected = [parse_bytes(one, "python") for one in data]
    with ThreadPoolExecutor(8) as executor:
        assert list(executor.map(lambda one: parse_bytes(one, "python"), data)) == expected


def test_a_pool_that_is_dropped_leaves_no_process() -> None:
    found = parse_all(iter(jobs(300)), 2)
    next(found)
    assert len(children()) == 2
    found.close()
    assert children() == []
    assert HERE_MAX_BYTES < 300 * 30_000
