"""mini-swe-agent itself, in an environment of its own: two steps on a small repository, through `agentcache run`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import MODELS_HOME
from tests.engine.serving import Server

pytestmark = pytest.mark.engine
BENCHMARKS = str(Path(__file__).resolve().parents[2] / "benchmarks")


def test_it_asks_and_its_tokens_are_accounted_for(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sys.path.insert(0, BENCHMARKS)
    try:
        import clients
    finally:
        sys.path.remove(BENCHMARKS)
    client = next(one for one in clients.CLIENTS if one.name == "mini-swe-agent")
    monkeypatch.setenv("AGENTCACHE_HOME", str(MODELS_HOME))  # installed once a machine
    programs, version = clients.install(client)
    assert version
    before = clients.seen_by(server.client)
    command = [
        word.replace("agent.step_limit=4", "agent.step_limit=2") for word in clients.command_of(client.name)
    ]
    # the tiny model does not know when to stop
    command[command.index("-t") : command.index("-t")] = ["-c", "model.model_kwargs.max_tokens=48"]
    done = subprocess.run(
        [sys.executable, "-m", "agentcache.cli", "run", "--url", server.client.url, "--", *command],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "HOME": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    records = clients.records_since(server.client, before)
    assert records, done.stdout[-2000:] + done.stderr[-2000:]
    assert all(record["prompt_tokens"] > 500 for record in records), "its system prompt alone is longer"
    assert not (tmp_path / ".config" / "mini-swe-agent").exists(), "the user's own settings are not touched"
