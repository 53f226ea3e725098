"""The commands, run as people run them: on a pipe, on a terminal, from other folders, with bad arguments."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.indexer.conftest import Repository

RUN = "from agentcache.cli import index_commands\nimport sys, typer\nfrom agentcache.errors import AgentCacheError\n"
RUN += "app = typer.Typer(pretty_exceptions_enable=False)\nindex_commands.register(app)\n"
RUN += "try:\n    app()\nexcept AgentCacheError as error:\n    sys.exit(f'agentcache: {error}')\n"

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {
        **os.environ,
        "AGENTCACHE_HOME": str(tmp_path / "home"),
        "PYTHONWARNINGS": "error::ResourceWarning",
    }


@pytest.fixture
def command(environment: dict[str, str], repository: Repository) -> Command:
    def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", RUN, *arguments],
            cwd=cwd or repository.root,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )

    repository.write(
        "pkg/a.py", "def one():\n    return two()\n\n\nclass C:\n    def m(self):\n        pass\n"
    )
    repository.write("b.js", "function two() {}\n")
    repository.write("bad\udcff\n.py", "x = 1\n")
    repository.write(".env", "TOKEN=1\n")
    return run


def lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


def value(done: subprocess.CompletedProcess[str]) -> Any:
    (line,) = lines(done)
    return json.loads(line)


def test_index_as_json(command: Command, repository: Repository) -> None:
    first = value(command("index", str(repository.root), "--json"))
    assert list(first) == [
        "files",
        "blocks",
        "languages",
        "bytes",
        "seconds",
        "parsed_files",
        "unchanged_files",
        "skipped",
        "errors",
    ]
    assert (first["files"], first["blocks"], first["parsed_files"]) == (3, 5, 3)
    assert first["languages"] == {"python": 2, "javascript": 1}
    assert first["skipped"] == {"secret": 1}
    assert first["errors"] == []
    second = value(command("index", "--json"))
    assert (second["parsed_files"], second["unchanged_files"]) == (0, 3)
    assert value(command("index", "--json", "--rebuild"))["parsed_files"] == 3
    small = value(command("index", "--json", "--max-file-bytes", "20"))
    assert small["skipped"] == {"secret": 1, "too_large": 1}
    assert value(command("status", "--json"))["skipped"] == small["skipped"]


def test_index_in_words(command: Command) -> None:
    first, *rest = lines(command("index", "."))
    assert ": 3 files, 5 blocks, 0.0 MB in " in first
    assert rest == ["languages: python 2, javascript 1", "left out: looks like a secret 1"]


@pytest.mark.parametrize("below", [".", "pkg", "/"])
def test_blocks(command: Command, repository: Repository, below: str) -> None:
    cwd = repository.root / below
    given = {".": "pkg/a.py", "pkg": "a.py", "/": str(repository.root / "pkg" / "a.py")}[below]
    found = value(command("blocks", str(repository.root), "--file", given, "--json", cwd=cwd))
    keys = ["id", "path", "kind", "name", "start_line", "end_line", "start_byte", "end_byte"]
    assert [list(block) for block in found] == [keys] * 3
    assert [(b["path"], b["kind"], b["name"], b["start_line"], b["end_line"]) for b in found] == [
        ("pkg/a.py", "function", "one", 1, 4),
        ("pkg/a.py", "class head", "C", 5, 5),
        ("pkg/a.py", "method", "m", 6, 7),
    ]
    assert [(b["start_byte"], b["end_byte"]) for b in found] == [(0, 30), (30, 39), (39, 69)]


def test_blocks_of_everything_in_words(command: Command) -> None:
    found = [line.split("\t")[:4] for line in lines(command("blocks"))]
    assert found == [
        ["b.js", "1-1", "function", "two"],
        ["bad\\udcff\\n.py", "1-1", "module head", ""],
        ["pkg/a.py", "1-4", "function", "one"],
        ["pkg/a.py", "5-5", "class head", "C"],
        ["pkg/a.py", "6-7", "method", "C.m"],
    ]


def test_find_and_refs(command: Command, repository: Repository) -> None:
    assert lines(command("find", "two")) == ["b.js:1-1  function two"]
    assert lines(command("find", "C.m", str(repository.root))) == ["pkg/a.py:6-7  method C.m"]
    assert lines(command("refs", "two")) == ["pkg/a.py:2  in function one"]
    assert value(command("find", "one", "--json"))[0]["start_line"] == 1
    (ref,) = value(command("refs", "two", "--json"))
    assert (ref["name"], ref["path"], ref["line"], ref["block"]["name"]) == ("two", "pkg/a.py", 2, "one")
    assert value(command("find", "nothing", "--json")) == []
    assert value(command("refs", "nothing", "--json")) == []


def test_answers_are_about_the_files_as_they_are(command: Command, repository: Repository) -> None:
    assert lines(command("find", "two")) == ["b.js:1-1  function two"]
    repository.write("b.js", "\nfunction two() {}\n")
    assert lines(command("find", "two")) == ["b.js:1-2  function two"]


def test_status(command: Command, repository: Repository, tmp_path: Path) -> None:
    repository.commit()
    shown = value(command("status", "--json"))
    assert (shown["root"], shown["files"], shown["blocks"]) == (str(repository.root), 3, 5)
    assert shown["left_out"] == [{"path": ".env", "reason": "secret"}]
    assert shown["head"].startswith("ref: refs/heads/main ")
    assert Path(shown["database"]).parent == tmp_path / "home" / "index"
    text = lines(command("status"))
    assert text[-2:] == ["left out, looks like a secret: 1", "  .env"]
    for number in range(30):
        repository.write(f"{number}.min.js", "")
    assert "  ... and 10 more (--all)" in lines(command("status"))
    assert len(lines(command("status", "--all"))) == 3 + 1 + 31 + 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("index", "nowhere"), "nowhere does not exist: give the path of a repository or folder"),
        (("index", "b.js"), "b.js is not a folder: give the path of a repository or folder"),
        (("blocks", "--file", "nowhere.py"), "nowhere.py is not in the index of "),
        (("blocks", "--file", ".env"), ".env is not in the index of "),
        (("find", "tw"), "nothing called tw is defined in "),
        (("find", "ONE"), "; similar: one"),
        (("refs", "nobody"), "nothing in "),
    ],
)
def test_errors_are_one_line(command: Command, arguments: tuple[str, ...], message: str) -> None:
    done = command(*arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr


def test_progress_on_a_terminal(environment: dict[str, str], repository: Repository) -> None:
    body = "".join(f"def f{number}(x):\n    return x + {number}\n\n\n" for number in range(2000))
    for number in range(60):
        repository.write(f"m{number}.py", f"# {number}\n{body}")
    main, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, "index"],
        cwd=repository.root,
        env=environment | {"TERM": "xterm-256color", "COLUMNS": "120"},
        stdout=subprocess.PIPE,
        stderr=terminal,
    )
    os.close(terminal)
    shown = b""
    while True:
        try:
            part = os.read(main, 65536)
        except OSError:
            break
        if not part:
            break
        shown += part
    os.close(main)
    output = process.communicate(timeout=120)[0]
    assert process.returncode == 0
    assert b"60 files" in output
    assert b"indexing" in shown
    assert b"/60" in shown
    assert b"MB/s" in shown or b"kB/s" in shown


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_watch_until_it_is_told_to_stop(
    number: signal.Signals, environment: dict[str, str], repository: Repository
) -> None:
    repository.write("a.py", "def one():\n    pass\n")
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", RUN, "watch"],
        cwd=repository.root,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "a.py: +1 -0 =0  one\n"
    assert process.stdout.readline().startswith(f"watching {repository.root}: 1 files, 1 blocks")
    repository.write("a.py", "def one():\n    pass\n\n\ndef two():\n    pass\n")
    assert process.stdout.readline().startswith("a.py: +2 -1 =0  one, two")
    process.send_signal(number)
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 0


def test_watch_as_json(environment: dict[str, str], repository: Repository) -> None:
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", RUN, "watch", "--json"],
        cwd=repository.root,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    time.sleep(0.2)
    repository.write("a.py", "def one():\n    pass\n")
    change = json.loads(process.stdout.readline())
    assert list(change) == ["path", "added", "removed", "kept"]
    assert [block["name"] for block in change["added"]] == ["one"]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_ctrl_c_ends_an_index_and_its_workers(environment: dict[str, str], repository: Repository) -> None:
    body = "".join(f"def f{number}(x):\n    return x + {number}\n\n\n" for number in range(2000))
    for number in range(60):
        repository.write(f"m{number}.py", f"# {number}\n{body}")
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, "index"], cwd=repository.root, env=environment, stderr=subprocess.PIPE
    )
    children: list[str] = []
    deadline = time.monotonic() + 60
    while not children and time.monotonic() < deadline:
        time.sleep(0.05)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert children
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode != 0
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{child}/stat").exists() for child in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [child for child in children if Path(f"/proc/{child}/stat").exists()] == []


def test_nothing_heavy_is_imported_for_help() -> None:
    code = "import sys; from agentcache.cli import index_commands, main; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True, text=True)
    heavy = {
        "numpy",
        "torch",
        "git",
        "sqlite_utils",
        "watchdog",
        "tree_sitter",
        "sqlite3",
        "blake3",
        "rich.progress",
    }
    assert heavy.isdisjoint(done.stdout.split())
