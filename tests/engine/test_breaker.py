"""A failure of ours: the request is answered by normal prefill, blending pauses, the reason is counted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.engine
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("execute", "blending paused: RuntimeError: injected"),
        ("match", "blending paused: RuntimeError: injected"),
        ("store", "no entry store: "),
        ("garble", "self-test failed: recompute equals full prefill, KL: "),
    ],
)
def test_a_failure_becomes_a_normal_prefill(
    what: str, reason: str, model_folder: str, tmp_path: Path
) -> None:
    if what == "store":
        (tmp_path / "store").write_text("a file where the store's folder should be")
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
    assert happened["fallback"].startswith(reason)
    assert sum(happened["fallbacks"].values()) >= 1
    if what == "garble":
        assert not happened["verdict"]["ok"]
        assert not happened["blending"], "an engine that fails its self-test serves exactly"
