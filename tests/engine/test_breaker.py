"""A failure of ours: the request is answered by normal prefill, blending pauses, the reason is counted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.engine
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("what", ["execute", "match"])
def test_a_failure_becomes_a_normal_prefill(what: str, model_folder: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.broken_engine", model_folder, str(tmp_path / "store"), what],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    happened = json.loads(done.stdout.strip().splitlines()[-1])
    assert happened["first"], "the request that met the failure is answered as vLLM would"
    assert happened["second"]
    assert happened["fallback"].startswith("blending paused: RuntimeError: injected")
    assert sum(happened["fallbacks"].values()) >= 1
