"""A failure of ours: the request is answered by normal prefill, blending pauses, the reason is counted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.engine
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def happened(model_folder: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What `broken_engine` prints, by name."""
    folder = tmp_path_factory.mktemp("broken")
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.broken_engine", model_folder, str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=1000,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"name"')]
    return {one["name"]: one for one in lines}


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("execute", "blending paused: RuntimeError: injected"),
        ("recompute", "blending paused: RuntimeError: injected"),
        ("match", "blending paused: RuntimeError: injected"),
        ("store", "no entry store: "),
        ("garble", "self-test failed: recompute equals full prefill, KL: "),
    ],
)
def test_a_failure_becomes_a_normal_prefill(
    what: str, reason: str, happened: dict[str, dict[str, Any]]
) -> None:
    own = happened[what]
    assert own.get("error") is None
    assert own["first"], "the request that met the failure is answered as vLLM would"
    assert own["second"]
    assert own["fallback"].startswith(reason)
    assert sum(own["fallbacks"].values()) >= 1
    if what == "garble":
        assert not own["verdict"]["ok"]
        assert not own["blending"], "an engine that fails its self-test serves exactly"
