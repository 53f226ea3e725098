"""The command as a person meets it: help, one-line errors, exit codes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def agentcache(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "agentcache.cli", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_every_command_has_help() -> None:
    listed = agentcache("--help")
    assert listed.returncode == 0
    for name in (
        "index",
        "blocks",
        "find",
        "refs",
        "watch",
        "status",
        "model",
        "store",
        "serve",
        "demo",
        "doctor",
    ):
        assert name in listed.stdout
        shown = agentcache(name, "--help")
        assert shown.returncode == 0, shown.stderr
        assert len(shown.stdout.splitlines()) > 4


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("serve", "no-such-folder"), "no-such-folder"),
        (("serve", "--mode", "faster"), "mode must be 'fast' or 'exact'"),
        (("serve", "--ram", "much"), "'much' is not a size"),
        (("serve", "--disk-codec", "zip"), "'zip' is not a codec: use one of raw, int8"),
        (("serve", "--remote", "ftp://x"), "'ftp://x' is not a remote tier: write s3://bucket"),
        (("serve", "--model", "./no-such-model"), "no-such-model"),
        (("serve", "--host", "0.0.0.0"), "without a key"),
        (("demo", "no-such-folder"), "no-such-folder"),
        (("index", "no-such-folder"), "no-such-folder"),
        (("model", "pull", "gpt-17"), "smollm2-135m"),
    ],
)
def test_a_mistake_is_one_line_and_exit_1(arguments: tuple[str, ...], says: str) -> None:
    done = agentcache(*arguments)
    assert done.returncode == 1, done.stdout + done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = agentcache("serve", "--port", str(taken.getsockname()[1]))
    assert done.returncode == 1
    assert "in use" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_version() -> None:
    assert agentcache("--version").stdout.startswith("agentcache ")
