"""`agentcache serve` as a person runs it: a repository, one command, Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.engine

GREETING = '''def greet(name):
    """Say hello to somebody, politely and at some length, so that this is worth a block of its own."""
    words = ["hello", "good morning", "good evening"]
    return [f"{word}, {name}" for word in words if len(word) > len(name)]
'''
PARTING = '''def part(name):
    """Say goodbye to somebody, politely and at some length, so that this is worth a block of its own."""
    return f"goodbye, {name}; it was a pleasure to have had you here, and do come again"
'''


class Running:
    """A started `agentcache serve` and what it has said so far."""

    def __init__(self, root: Path, home: Path, *arguments: str) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "agentcache.cli", "serve", str(root), "--port", "0", *arguments],
            env={**os.environ, "AGENTCACHE_HOME": str(home), "VLLM_CPU_KVCACHE_SPACE": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(line.rstrip("\n") for line in self.process.stdout)

    def wait_for(self, beginning: str, timeout_s: float = 240.0) -> str:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for line in list(self.lines):
                if line.startswith(beginning):
                    return line
            assert self.process.poll() is None, self.lines
            time.sleep(0.1)
        raise AssertionError(f"{beginning!r} was not said: {self.lines}")

    @property
    def url(self) -> str:
        return self.wait_for("ready:").split()[-1]

    def status(self) -> dict[str, Any]:
        answer: dict[str, Any] = httpx.get(f"{self.url}/agentcache/status", timeout=60).json()
        return answer

    def warm_when(self, check: Any, timeout_s: float = 120.0) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            status = self.status()
            if check(status):
                return status
            time.sleep(0.3)
        raise AssertionError(f"not warm: {self.status()['warm']}, {self.lines}")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    root.mkdir()
    (root / "greeting.py").write_text(GREETING)
    (root / "parting.py").write_text(PARTING)
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    return root


@pytest.fixture
def running(repository: Path, tmp_path: Path, model_folder: str) -> Iterator[Running]:
    served = Running(
        repository, tmp_path / "agentcache-home", "--", "--enforce-eager", "--max-model-len", "2048"
    )
    yield served
    if served.process.poll() is None:
        served.process.send_signal(signal.SIGINT)
        served.process.wait(60)


def children(pid: int) -> set[int]:
    """All processes below `pid`."""
    found: set[int] = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == pid:
            child = int(path.parent.name)
            found |= {child} | children(child)
    return found


def ask(url: str, text: str) -> dict[str, Any]:
    body = {
        "model": "smollm2-135m",
        "messages": [{"role": "user", "content": f"Look at this:\n{text}\nWhat is it?"}],
        "max_tokens": 1,
        "kv_transfer_params": {"agentcache": {"mode": "fast"}},
    }
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).json()
    counters: dict[str, Any] = answer["kv_transfer_params"]["agentcache"]
    return counters


def warming_is_told(running: Running) -> bool:
    """Whether the status says that warming is to come before blending was tried and `ready` is said."""
    url = running.wait_for("engine: starting").partition(" at ")[2].split()[0]
    while not any(line.startswith("ready:") for line in running.lines):
        assert running.process.poll() is None, running.lines
        try:
            status = httpx.get(f"{url}/agentcache/status", timeout=60).json()
            if status.get("warm", {}).get("state") == "warming":
                return True
        except httpx.TransportError:
            pass
        time.sleep(0.02)
    return False


def test_serve_warms_follows_edits_and_ends_with_ctrl_c(repository: Path, running: Running) -> None:
    running.wait_for("index: 2 files")
    assert warming_is_told(running), (
        "who waits for a warm server from its first answer on must not find it idle"
    )
    url = running.url
    status = running.warm_when(lambda now: now["warm"]["state"] == "idle")
    assert status["warm_blocks"] == status["blocks"] > 0
    assert status["tiers"]["ram"]["bytes"] > 0
    assert status["blending"] is True
    verdict = httpx.post(f"{url}/agentcache/selftest", timeout=60).json()
    assert verdict["ok"], verdict["reason"]
    assert len(verdict["checks"]) == 5
    correction = verdict["correction"]
    assert correction["tokens"] > 3000
    assert correction["kl_with"] <= correction["kl_without"] < 0.1
    assert status["correction"] == correction

    both = ask(url, PARTING + "\n" + GREETING)
    assert both["reused_tokens"] > 80, "both files, in another order than they were warmed in"

    edited = GREETING.replace("hello", "welcome to the house of many blocks")
    (repository / "greeting.py").write_text(edited)
    tokens_before = status["warm"]["tokens_computed"]
    running.warm_when(
        lambda now: now["warm"]["state"] == "idle" and now["warm"]["tokens_computed"] != tokens_before
    )
    assert ask(url, edited + "\n# and nothing else")["reused_tokens"] > 50, "an edit is warm again by itself"

    below = children(running.process.pid)
    assert below
    running.process.send_signal(signal.SIGINT)
    assert running.process.wait(60) == 130
    time.sleep(1.0)
    alive = {pid for pid in below if Path(f"/proc/{pid}").exists() and not is_zombie(pid)}
    assert not alive, "Ctrl-C ends everything that was started"
    assert "Traceback" not in "\n".join(running.lines)


def is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_nothing_is_left_of_a_killed_serve(repository: Path, tmp_path: Path, model_folder: str) -> None:
    """SIGKILL cannot be handled; the engine goes all the same, here while it starts."""
    served = Running(repository, tmp_path / "home", "--model", model_folder, "--", "--max-model-len", "2048")
    served.wait_for("engine:")
    time.sleep(3.0)
    below = children(served.process.pid)
    assert len(below) >= 2, "the engine and its guard"
    served.process.kill()
    served.process.wait(10)
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() and not is_zombie(pid) for pid in below):
        assert time.monotonic() < deadline, "the engine outlived the one who started it"
        time.sleep(0.2)
