"""The database file: private, refused when newer, rebuilt when damaged, shared by threads and processes."""

from __future__ import annotations

import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

from agentcache.errors import IndexError_, UsageError
from agentcache.indexer import Index, IndexSettings
from agentcache.indexer.collect import collect
from agentcache.indexer.index import default_database, forget
from agentcache.indexer.schema import VERSION
from tests.indexer.conftest import Repository, contents

T = TypeVar("T")


def write_files(repository: Repository, count: int = 20, version: int = 1) -> None:
    for number in range(count):
        repository.write(
            f"m{number}.py", f"def f{number}():\n    return {version}\n\n\ndef g():\n    f{number}()\n"
        )


def test_files_are_private(repository: Repository, tmp_path: Path, open_index: Callable[..., Index]) -> None:
    write_files(repository)
    index = open_index(repository.root)
    index.update()
    folder = index.db_path.parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    names = {path.name for path in folder.iterdir()}
    assert {"index.db", "index.db-wal", "index.db.lock"} <= names
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


def test_one_database_a_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTCACHE_HOME", str(tmp_path / "home"))
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to("a")
    assert default_database(tmp_path / "a") == default_database(tmp_path / "link")
    assert default_database(tmp_path / "a") != default_database(tmp_path)
    with Index.open(tmp_path / "link") as index:
        assert index.db_path == default_database(tmp_path / "a")
        assert index.db_path.parent == tmp_path / "home" / "index"
        assert index.root == tmp_path / "a"


def test_a_newer_index_is_refused_and_left_alone(
    repository: Repository, open_index: Callable[..., Index]
) -> None:
    index = open_index(repository.root)
    index.close()
    with sqlite3.connect(index.db_path) as connection:
        connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    connection.close()
    before = index.db_path.read_bytes()
    with pytest.raises(IndexError_, match="written by a newer agentcache") as caught:
        open_index(repository.root)
    assert "\n" not in str(caught.value)
    assert index.db_path.read_bytes() == before


@pytest.mark.parametrize("damage", ["garbage", "truncated", "empty", "table missing", "overwritten middle"])
def test_a_damaged_index_is_rebuilt(
    damage: str, repository: Repository, open_index: Callable[..., Index]
) -> None:
    write_files(repository, 200)
    with open_index(repository.root) as index:
        index.update()
        expected = contents(index)
    path = index.db_path
    data = path.read_bytes()
    if damage == "garbage":
        path.write_bytes(b"this is no database at all" * 1000)
    elif damage == "truncated":
        path.write_bytes(data[: len(data) // 3])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "table missing":
        connection = sqlite3.connect(path)
        connection.execute("DROP TABLE block")
        connection.close()
    else:
        path.write_bytes(data[:4096] + b"\xa5" * (len(data) - 8192) + data[-4096:])
    with open_index(repository.root) as index:
        report = index.update()
        assert (report.files, report.errors) == (200, [])
        assert contents(index) == expected
        assert [block.name for block in index.find("f7")] == ["f7"]


def test_damage_under_an_open_index(repository: Repository, open_index: Callable[..., Index]) -> None:
    write_files(repository, 200)
    index = open_index(repository.root)
    index.update()
    expected = contents(index)
    index._database.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    size = index.db_path.stat().st_size
    with index.db_path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * (size - 4096))
    with open_index(repository.root) as other:
        other.update()
        assert contents(other) == expected
        assert contents(open_index(repository.root)) == expected


def other_thread(ask: Callable[[], list[T]]) -> list[T]:
    """The answer that another thread gets; fails if it gets none."""
    with ThreadPoolExecutor() as executor:
        return executor.submit(ask).result(30)


def test_readers_see_whole_updates_and_never_wait(
    repository: Repository, open_index: Callable[..., Index]
) -> None:
    write_files(repository)
    index = open_index(repository.root)
    index.update()
    with index._database.updating(), index._database.writing() as connection:
        connection.execute("DELETE FROM file")
        assert len(other_thread(index.files)) == 20
        assert [block.name for block in other_thread(lambda: index.blocks("m1.py"))] == ["f1", "g"]
        with open_index(repository.root) as other:
            assert len(other.files()) == 20
    assert index.files() == []


def test_questions_do_not_wait_for_an_update(
    repository: Repository, open_index: Callable[..., Index]
) -> None:
    write_files(repository)
    index = open_index(repository.root)
    assert index.freshen()
    write_files(repository, 25)
    with index._database.updating():
        assert not index.freshen()
        assert len(index.files()) == 20
    assert index.freshen()
    assert len(index.files()) == 25


def test_a_failed_write_leaves_no_trace(repository: Repository, open_index: Callable[..., Index]) -> None:
    write_files(repository)
    index = open_index(repository.root)
    index.update()

    def fail() -> None:
        with index._database.writing() as connection:
            connection.execute("DELETE FROM file")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert len(index.files()) == 20


def test_two_processes_on_one_index(repository: Repository, open_index: Callable[..., Index]) -> None:
    code = (
        "import sys; from pathlib import Path; from agentcache.indexer import Index\n"
        "root, database = map(Path, sys.argv[1:])\n"
        "for round in range(6):\n"
        "    for number in range(int(round % 2), 200, 2):\n"
        "        (root / f'm{number}.py').write_text(f'def f{number}(): return {round}\\n')\n"
        "    with Index.open(root, database) as index: index.update()\n"
    )
    write_files(repository, 200)
    index = open_index(repository.root)
    command = [sys.executable, "-c", code, str(repository.root), str(index.db_path)]
    others = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(2)]
    while any(other.poll() is None for other in others):
        index.update()
        assert len(index.files()) == 200
    assert [other.communicate()[1] for other in others] == [b"", b""]
    index.update()
    assert contents(index) == contents_of_fresh(repository, open_index)


def contents_of_fresh(repository: Repository, open_index: Callable[..., Index]) -> dict[str, object] | None:
    fresh = open_index(repository.root, "fresh")
    fresh.update()
    return contents(fresh)


def test_two_threads_may_update(repository: Repository, open_index: Callable[..., Index]) -> None:
    write_files(repository, 100)
    index = open_index(repository.root)
    threads = [threading.Thread(target=index.update) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert contents(index) == contents_of_fresh(repository, open_index)


def test_what_no_file_holds_is_collected(repository: Repository, open_index: Callable[..., Index]) -> None:
    index = open_index(repository.root)
    for version in range(30):
        repository.write("a.py", f"def name_{version}():\n    other_{version}()\n")
        index.update()
    count = "SELECT (SELECT count(*) FROM content), (SELECT count(*) FROM name), (SELECT count(*) FROM block)"
    connection = index._database.connection
    assert connection.execute(count).fetchone() == (30, 60, 30)
    assert collect(index._database, keep_at_least=4) == 25
    assert connection.execute(count).fetchone() == (5, 10, 5)
    assert collect(index._database, keep_at_least=4) == 0
    assert index.similar_names("name_") == ["name_29"]
    assert index.find("name_29")
    assert index.refs("other_29")
    repository.write("a.py", "def name_28():\n    other_28()\n")
    index.update()
    assert index.similar_names("NAME_2") == ["name_28"]
    connection.execute("INSERT INTO name_search (name_search) VALUES ('integrity-check')")


def test_a_closed_index_says_so(repository: Repository, open_index: Callable[..., Index]) -> None:
    index = open_index(repository.root)
    index.close()
    index.close()
    failures = []

    def ask() -> None:
        try:
            index.files()
        except IndexError_ as error:
            failures.append(str(error))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert "is closed" in failures[0]


def test_a_place_that_cannot_be_written(repository: Repository, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(IndexError_, match="check the folder's rights and space"):
        Index.open(repository.root, tmp_path / "file" / "x.db")
    with pytest.raises(IndexError_, match="check the folder's rights and space"):
        Index.open(repository.root, tmp_path)


def test_forgetting_starts_anew(repository: Repository, open_index: Callable[..., Index]) -> None:
    write_files(repository)
    with open_index(repository.root) as index:
        index.update()
    forget(index.db_path)
    assert open_index(repository.root).update().parsed_files == 20


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTCACHE_MAX_FILE_BYTES", "1000")
    monkeypatch.setenv("AGENTCACHE_INDEX_WORKERS", "3")
    settings = IndexSettings.from_environment()
    assert (settings.max_file_bytes, settings.num_workers) == (1000, 3)
    assert IndexSettings().num_workers >= 1
    monkeypatch.setenv("AGENTCACHE_MAX_FILE_BYTES", "2MB")
    with pytest.raises(UsageError, match="AGENTCACHE_MAX_FILE_BYTES"):
        IndexSettings.from_environment()
