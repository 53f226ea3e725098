"""`agentcache doctor`: what a person is told about the machine, and the exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.test_main import agentcache


def test_the_machine_alone() -> None:
    done = agentcache("doctor", "--model", "", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["ok"] is True
    assert [finding["name"] for finding in told["findings"]] == ["python", "engine", "git", "store"]
    assert "verdict: all is well" in done.stderr


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    done = agentcache("doctor", "--model", str(tmp_path / "nothing"))
    assert done.returncode == 1
    assert "FAIL model: " in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_a_store_without_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is what cannot be caused here."""
    from collections import namedtuple

    from agentcache import doctor

    usage = namedtuple("usage", "free")
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: usage(0))
    store = next(finding for finding in doctor.machine() if finding.name == "store")
    assert store.ok is False
    assert "AGENTCACHE_HOME" in store.advice
