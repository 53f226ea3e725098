"""Watching a real tree with real events: every way in which editors, git and people change files."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentcache.indexer import ChangeRecord, Index, Watcher, events
from agentcache.indexer.events import has_more_folders, is_internal, watch_limit
from tests.indexer.conftest import Repository, contents

A = "def one():\n    return 1\n\n\ndef two():\n    return 2\n"
PATIENCE_S = 60.0


class Watched:
    """A repository under watch, and what was heard of it."""

    def __init__(self, repository: Repository, index: Index, fresh: Callable[[], Index]) -> None:
        self.repository = repository
        self.index = index
        self.heard: list[ChangeRecord] = []
        self.said: list[str] = []
        self._fresh = fresh
        self._news = threading.Condition()

    def watch(self, **settings: float) -> Watcher:
        self.watcher = Watcher(self.index, self._listen, on_status=self.said.append, **settings)
        self.watcher.start()
        assert self.watcher.wait_ready(PATIENCE_S)
        self.heard.clear()
        return self.watcher

    def _listen(self, changes: list[ChangeRecord]) -> None:
        with self._news:
            self.heard += changes
            self._news.notify_all()

    def settle(self) -> dict[str, tuple[list[str], list[str], list[str]]]:
        """Wait until the index equals a fresh one; names added, removed and kept since the last call, by path."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with self._fresh() as fresh:
                fresh.update()
                expected = contents(fresh)
            if contents(self.index) == expected:
                break
            assert time.monotonic() < deadline, (contents(self.index), expected)
            with self._news:
                self._news.wait(0.2)
        heard = self.take()
        return {
            change.path: tuple(
                [block.name for block in side] for side in (change.added, change.removed, change.kept)
            )
            for change in heard
        }  # type: ignore[return-value]

    def take(self) -> list[ChangeRecord]:
        """What was heard, when the listener has heard it: it is called after the index has changed."""
        with self._news:
            self._news.wait_for(lambda: bool(self.heard), timeout=2)
            heard, self.heard = self.heard, []
            return heard


@pytest.fixture
def watched(repository: Repository, tmp_path: Path, open_index: Callable[..., Index]) -> Iterator[Watched]:
    repository.write("a.py", A)
    repository.write("sub/b.py", "x = 1\n")
    repository.commit()

    def fresh() -> Index:
        database = tmp_path / "fresh.db"
        for suffix in ("", "-wal", "-shm"):
            Path(f"{database}{suffix}").unlink(missing_ok=True)
        return Index.open(repository.root, database)

    made = Watched(repository, open_index(repository.root), fresh)
    yield made
    made.watcher.stop()


def test_an_edit_names_exactly_its_blocks(watched: Watched) -> None:
    watched.watch(reconcile_s=3600)
    watched.repository.write("a.py", A.replace("return 2", "return 22"))
    assert watched.settle() == {"a.py": (["two"], ["two"], ["one"])}
    watched.repository.write("a.py", "import os\n\n\n" + A)
    assert watched.settle() == {"a.py": (["", "two"], ["two"], ["one"])}


def test_atomic_saves(watched: Watched) -> None:
    watched.watch(reconcile_s=3600)
    root = watched.repository.root
    # As editors do: a new file renamed over the old one; the old one moved to a backup first; from elsewhere.
    (root / ".a.py.tmp").write_text(A.replace("1", "11"))
    (root / ".a.py.tmp").replace(root / "a.py")
    assert watched.settle() == {"a.py": (["one"], ["one"], ["two"])}
    (root / "a.py").rename(root.parent / "a.py~")
    (root / "a.py").write_text(A)
    heard = watched.settle()
    assert heard["a.py"][2] in (["two"], [], ["one", "two"])
    (root.parent / "outside").write_text(A.replace("2", "3"))
    (root.parent / "outside").replace(root / "a.py")
    watched.settle()
    assert watched.index.read("a.py").endswith(b"return 3\n")


def test_new_moved_and_deleted_files_and_folders(watched: Watched) -> None:
    watched.watch(reconcile_s=3600)
    root = watched.repository.root
    watched.repository.write("new/deep/er/c.py", "def c():\n    pass\n")
    assert watched.settle() == {"new/deep/er/c.py": (["c"], [], [])}
    (root / "new").rename(root / "renamed")
    assert watched.settle() == {"new/deep/er/c.py": ([], ["c"], []), "renamed/deep/er/c.py": (["c"], [], [])}
    (root / "renamed").rename(root.parent / "out")
    assert watched.settle() == {"renamed/deep/er/c.py": ([], ["c"], [])}
    (root.parent / "out").rename(root / "back")
    assert watched.settle() == {"back/deep/er/c.py": (["c"], [], [])}
    (root / "back" / "deep" / "er" / "c.py").write_text("def d():\n    pass\n")
    assert watched.settle() == {"back/deep/er/c.py": (["d"], ["c"], [])}
    shutil.rmtree(root / "back")
    assert watched.settle() == {"back/deep/er/c.py": ([], ["d"], [])}
    (root / "a.py").unlink()
    assert watched.settle() == {"a.py": ([], ["one", "two"], [])}


def test_rules_that_come_and_go(watched: Watched) -> None:
    watched.repository.git("rm", "--cached", "-q", "sub/b.py")
    watched.watch(reconcile_s=3600)
    watched.repository.write("sub/.gitignore", "b.py\n")
    assert set(watched.settle()) == {"sub/.gitignore", "sub/b.py"}
    (watched.repository.root / "sub" / ".gitignore").unlink()
    assert set(watched.settle()) == {"sub/.gitignore", "sub/b.py"}
    watched.repository.write(".agentcacheignore", "*.py\n")
    watched.settle()
    assert [record.path for record in watched.index.files()] == [".agentcacheignore"]


def test_a_formatter_storm(watched: Watched) -> None:
    watched.watch(reconcile_s=3600)
    for number in range(300):
        watched.repository.write(f"m{number}.py", f"def f{number}():\n  return {number}\n")
    watched.settle()
    for version in range(3):
        for number in range(300):
            path = watched.repository.write(
                f"m{number}.py.tmp", f"def f{number}():\n    return {number + version}\n"
            )
            path.replace(watched.repository.root / f"m{number}.py")
    watched.settle()
    assert len(watched.index.files()) == 302


def test_checkouts_and_stashes(watched: Watched) -> None:
    git = watched.repository.git
    git("checkout", "-q", "-b", "other")
    for number in range(400):
        watched.repository.write(f"p{number % 20}/m{number}.py", f"def f{number}():\n    pass\n")
    watched.repository.write("a.py", A.replace("one", "uno"))
    watched.repository.commit()
    git("checkout", "-q", "main")
    watched.watch(reconcile_s=3600)
    for branch in ("other", "main", "other"):
        git("checkout", "-q", branch)
        watched.settle()
    watched.repository.write("a.py", A.replace("two", "dos"))
    watched.settle()
    git("stash")
    assert watched.settle() == {"a.py": (["uno", "two"], ["one", "dos"], [])}
    git("stash", "pop")
    assert watched.settle() == {"a.py": (["one", "dos"], ["uno", "two"], [])}
    git("reset", "-q", "--hard", "HEAD~1")
    watched.settle()
    assert len(watched.index.files()) == 2


def test_a_linked_worktree(watched: Watched, open_index: Callable[..., Index], tmp_path: Path) -> None:
    watched.repository.git("branch", "other")
    watched.repository.git("worktree", "add", "-q", str(tmp_path / "tree"), "other")
    with open_index(tmp_path / "tree", "tree") as index:
        heard = threading.Event()
        watcher = Watcher(index, lambda changes: heard.set(), reconcile_s=3600)
        watcher.start()
        assert watcher.wait_ready(PATIENCE_S)
        heard.clear()
        (tmp_path / "tree" / "a.py").write_text("x = 1\n")
        assert heard.wait(PATIENCE_S)
        watcher.stop()
    watched.watch()


def test_what_is_ignored_costs_no_look(watched: Watched) -> None:
    watched.repository.write(".gitignore", "build/\n*.log\n")
    watched.repository.write("build/x.o", "x")
    watched.repository.write("run.log", "x")
    watcher = watched.watch(reconcile_s=3600)
    looked = watcher._last_full
    for number in range(20):
        watched.repository.write("run.log", f"{number}\n")
        watched.repository.write("build/x.o", f"{number}\n")
        time.sleep(0.02)
    watched.repository.write("a.py", A + "x = 1\n")
    assert set(watched.settle()) == {"a.py"}
    assert watcher._last_full == looked


def test_lost_events_are_made_up_for(watched: Watched) -> None:
    watcher = watched.watch(reconcile_s=3600)
    assert watcher._source is not None
    # Nothing reaches the watcher but watchdog's word that something was lost.
    watcher._source._observer.unschedule_all()
    watched.repository.write("a.py", A.replace("1", "11"))
    logging.getLogger("watchdog.observers.inotify").warning(
        "Inotify queue overflowed; filesystem events were lost"
    )
    assert watched.settle() == {"a.py": (["one"], ["one"], ["two"])}


def test_without_any_event_the_reconcile_pass_finds_it(watched: Watched) -> None:
    watcher = watched.watch(reconcile_s=1)
    assert watcher._source is not None
    watcher._source._observer.unschedule_all()
    watched.repository.write("sub/b.py", "x = 2\n")
    assert set(watched.settle()) == {"sub/b.py"}


def test_more_folders_than_watches(watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "limit").write_text("2\n")
    monkeypatch.setattr(events, "_WATCH_LIMIT_FILE", tmp_path / "limit")
    assert watch_limit() == 1
    watcher = watched.watch(poll_s=0.2)
    assert watcher.polling
    assert watched.said == [
        "no file events (more folders than the 1 that inotify may watch here): "
        "looking at all files every 0.2 s instead"
    ]
    watched.repository.write("a.py", A.replace("1", "11"))
    assert watched.settle() == {"a.py": (["one"], ["one"], ["two"])}


def test_counting_folders(tmp_path: Path) -> None:
    for number in range(9):
        (tmp_path / "tree" / str(number)).mkdir(parents=True)
    (tmp_path / "tree" / "loop").symlink_to(".")
    assert has_more_folders(tmp_path / "tree", 9)
    assert not has_more_folders(tmp_path / "tree", 10)
    assert not has_more_folders(tmp_path / "nowhere", 1)


def test_a_root_that_goes_and_comes_back(watched: Watched) -> None:
    watched.watch(reconcile_s=3600, poll_s=0.2)
    root = watched.repository.root
    root.rename(root.parent / "away")
    deadline = time.monotonic() + PATIENCE_S
    while not watched.said and time.monotonic() < deadline:
        time.sleep(0.05)
    assert "cannot be listed" in watched.said[0]
    (root.parent / "away" / "a.py").write_text(A.replace("1", "11"))
    (root.parent / "away").rename(root)
    assert watched.settle() == {"a.py": (["one"], ["one"], ["two"])}
    assert watched.said[1:] == [f"{root} is back"]
    watched.repository.write("a.py", A)
    assert watched.settle() == {"a.py": (["one"], ["one"], ["two"])}


def test_a_listener_that_fails_is_logged_and_watching_goes_on(
    repository: Repository, open_index: Callable[..., Index], caplog: pytest.LogCaptureFixture
) -> None:
    index = open_index(repository.root)
    heard = threading.Semaphore(0)

    def listen(changes: list[ChangeRecord]) -> None:
        heard.release()
        raise RuntimeError("a listener's own fault")

    watcher = Watcher(index, listen)
    watcher.start()
    assert watcher.wait_ready(PATIENCE_S)
    for number in range(3):
        repository.write("a.py", f"x = {number}\n")
        assert heard.acquire(timeout=PATIENCE_S)
    watcher.stop()
    watcher.stop()
    assert "a listener failed" in caplog.text


def test_a_watcher_may_be_stopped_from_its_listener(
    repository: Repository, open_index: Callable[..., Index]
) -> None:
    repository.write("a.py", A)
    done = threading.Event()

    def listen(changes: list[ChangeRecord]) -> None:
        watcher.stop()
        done.set()

    watcher = Watcher(open_index(repository.root), listen)
    watcher.start()
    assert done.wait(PATIENCE_S)


def test_a_watcher_may_be_stopped_in_its_first_update(
    repository: Repository, open_index: Callable[..., Index]
) -> None:
    for number in range(300):
        repository.write(f"m{number}.py", f"# {number}\n" + A * 400)
    index = open_index(repository.root)
    heard: list[ChangeRecord] = []
    watcher = Watcher(index, heard.extend)
    watcher.start()
    time.sleep(0.3)
    watcher.stop()
    assert heard == []
    index.update()
    assert len(index.files()) == 300


def test_storms_of_folders_raise_no_warning(repository: Repository) -> None:
    code = (
        "import shutil, sys; from pathlib import Path\n"
        "from agentcache.indexer import Index, Watcher\n"
        "root = Path(sys.argv[1])\n"
        "with Index.open(root, root.parent / 'storm.db') as index:\n"
        "    watcher = Watcher(index, lambda changes: None); watcher.start(); watcher.wait_ready()\n"
        "    for number in range(100):\n"
        "        deep = root / f'd{number}' / 'x' / 'y'; deep.mkdir(parents=True)\n"
        "        (deep / 'f.py').write_text('x = 1')\n"
        "        if number % 2: shutil.rmtree(root / f'd{number}')\n"
        "        elif number % 3: (root / f'd{number}').rename(root / f'e{number}')\n"
        "    watcher.stop(); index.update(); print(len(index.files()))\n"
    )
    command = [
        sys.executable,
        "-W",
        "error",
        "-W",
        "ignore::DeprecationWarning",
        "-c",
        code,
        str(repository.root),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=os.environ)
    assert (done.returncode, done.stdout, done.stderr) == (0, "50\n", "")


def test_internal_paths() -> None:
    assert all(map(is_internal, (".git", ".git/index.lock", "lib/inner/.git/HEAD", "lib/inner/.git")))
    assert not any(map(is_internal, (".gitignore", "a.git", ".github/x.yml")))
