"""Blending against full prefill on every kind of model, through vLLM's own engine, in float32; and who is refused.

Each model is tiny, random and runs in `measure`, in a process of its own; each comparison has a control that must fail.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.parity.tiny import REFUSED, SUPPORTED

pytestmark = pytest.mark.engine
ROOT = Path(__file__).resolve().parents[2]
LOGPROB = 1e-3
"""Over the whole vocabulary; blending may differ from vLLM so much, in float32."""
RELATIVE = 1e-4
"""Of a key's or value's length."""
FAR = 1e-2
"""What is wrong on purpose must differ so much, in either."""


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What `measure` prints, by model. Two processes share the models; one that fails hides no other."""
    names = [*SUPPORTED, *REFUSED]
    running = []
    for share in (names[0::2], names[1::2]):
        folder = tmp_path_factory.mktemp("tiny")
        command = [sys.executable, "-m", "tests.parity.measure", str(folder), *share]
        log = (folder / "log").open("w+")
        running.append((subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log), log))
    found: dict[str, dict[str, Any]] = {}
    for process, log in running:
        out, _ = process.communicate()
        log.seek(0)
        assert process.returncode == 0, log.read()[-3000:]
        log.close()
        lines = [line for line in out.decode().splitlines() if line.startswith("{")]
        found.update((figure["name"], figure) for figure in map(json.loads, lines))
    if where := os.environ.get("AGENTCACHE_PARITY_JSON"):
        Path(where).write_text(json.dumps(found, indent=1))
    return found


@pytest.mark.parametrize("name", SUPPORTED)
def test_everything_recomputed_equals_full_prefill(name: str, figures: dict[str, dict[str, Any]]) -> None:
    own = figures[name]
    assert own.get("error") is None
    assert own["reason"] == ""
    assert own["all, tokens"] == own["all in runs, tokens"] == [0, 680], "all went through virtual requests"
    assert own["all"] < LOGPROB
    assert own["all in runs"] < LOGPROB
    assert own["seq_len -40"] > FAR
    assert own["seq_len +40"] > FAR


@pytest.mark.parametrize("name", SUPPORTED)
def test_entries_in_their_own_place_equal_full_prefill(name: str, figures: dict[str, dict[str, Any]]) -> None:
    own = figures[name]
    assert own["in place, tokens"] == [750, 0], "all came from entries"
    assert own["in place"] < LOGPROB
    assert own["none, tokens"] == [680, 0]
    assert own["none"] > FAR, "elsewhere, their missing context is seen"


@pytest.mark.parametrize("name", SUPPORTED)
def test_a_moved_key_equals_the_key_computed_there(name: str, figures: dict[str, dict[str, Any]]) -> None:
    own = figures[name]
    assert own["moved"] < RELATIVE
    assert own["moved by one too many"] > FAR


@pytest.mark.parametrize("name", SUPPORTED)
def test_the_trial_at_start_tells_right_from_wrong(name: str, figures: dict[str, dict[str, Any]]) -> None:
    own = figures[name]
    assert own["trial"] < 1e-3
    assert own["trial, other pairs"] > 0.3


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_blended_is_refused_with_its_reason(
    name: str, figures: dict[str, dict[str, Any]]
) -> None:
    own = figures[name]
    assert own.get("error") is None
    assert own["reason"] == REFUSED[name].reason
    assert own.get("fallback", own["reason"]) == own["reason"], "and counted for each request"
