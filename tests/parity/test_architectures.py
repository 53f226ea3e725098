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

from tests.parity.tiny import LATENT, REFUSED, SUPPORTED

pytestmark = pytest.mark.engine
ROOT = Path(__file__).resolve().parents[2]
LOGPROB = 1e-3
"""Over the whole vocabulary; blending may differ from vLLM so much, in float32."""
RELATIVE = 1e-4
"""Of a key's or value's length."""
FAR = 1e-2
"""What is wrong on purpose must differ so much, in either."""


ON_V2 = ("qwen3", "glm", "deepseek-v3")
"""Models that are run by vLLM's second model runner, too."""


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What `measure` prints, by model; by model and " V2" under the second model runner.

    Two processes share the models of the first.
    """
    names = [*SUPPORTED, *LATENT, *REFUSED]
    folders = [tmp_path_factory.mktemp("tiny") for _ in range(3)]
    halves = [
        start(folder, share, "0") for folder, share in zip(folders, (names[0::2], names[1::2]), strict=False)
    ]
    found = {figure["name"]: figure for half in halves for figure in finish(half)}
    second = finish(start(folders[2], list(ON_V2), "1"))
    found.update((f"{figure['name']} V2", figure) for figure in second)
    if where := os.environ.get("AGENTCACHE_PARITY_JSON"):
        Path(where).write_text(json.dumps(found, indent=1))
    return found


def start(folder: Path, names: list[str], second_runner: str) -> subprocess.Popen[bytes]:
    """`measure` for some models; its log goes into the folder."""
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.parity.measure", str(folder), *names],
            cwd=ROOT,
            env={**os.environ, "VLLM_USE_V2_MODEL_RUNNER": second_runner},
            stdout=subprocess.PIPE,
            stderr=log,
        )


def finish(process: subprocess.Popen[bytes]) -> list[dict[str, Any]]:
    out, _ = process.communicate(timeout=1000)
    assert process.returncode == 0, "see the log in the temporary folder"
    return [json.loads(line) for line in out.decode().splitlines() if line.startswith("{")]


PROVEN = [*SUPPORTED, *(f"{name} V2" for name in ON_V2)]


@pytest.mark.parametrize("name", PROVEN)
def test_everything_recomputed_equals_full_prefill(name: str, figures: dict[str, dict[str, Any]]) -> None:
    own = figures[name]
    assert own.get("error") is None
    assert own["reason"] == ""
    assert own["runner"] == ("V2" if name.endswith(" V2") else "V1")
    assert own["all, tokens"] == own["all in runs, tokens"] == [0, 680], "all went through virtual requests"
    assert own["all"] < LOGPROB
    assert own["all in runs"] < LOGPROB
    assert own["seq_len -40"] > FAR
    assert own["seq_len +40"] > FAR


@pytest.mark.parametrize("name", PROVEN)
def test_recompute_within_the_engines_step_equals_full_prefill(
    name: str, figures: dict[str, dict[str, Any]]
) -> None:
    own = figures[name]
    assert own["all, joined"] < LOGPROB
    assert own["all, joined, tokens"] == [0, 200]
    assert own["joined"] == 3
    assert own["joined, seq_len -40"] > FAR
    assert own["joined, others' outputs"] > FAR


@pytest.mark.parametrize("name", LATENT)
def test_a_prompt_of_latent_vectors_equals_full_prefill(
    name: str, figures: dict[str, dict[str, Any]]
) -> None:
    own = figures[name]
    assert own.get("error") is None
    assert own["all, tokens"] == [0, 680]
    assert own["all"] < LOGPROB


@pytest.mark.parametrize("name", PROVEN)
def test_entries_in_their_own_place_equal_full_prefill(name: str, figures: dict[str, dict[str, Any]]) -> None:
    own = figures[name]
    assert own["in place, tokens"] == [750, 0], "all came from entries"
    assert own["in place"] < LOGPROB
    assert own["none, tokens"] == [680, 0]
    assert own["none"] > FAR, "elsewhere, their missing context is seen"


@pytest.mark.parametrize("name", PROVEN)
@pytest.mark.parametrize("strategy", ["deviation", "boundary+tail"])
def test_scores_are_had_or_their_lack_is_counted(
    strategy: str, name: str, figures: dict[str, dict[str, Any]]
) -> None:
    own = figures[name]
    reused, recomputed = own[f"{strategy}, tokens"]
    assert reused + recomputed == 680
    if name.startswith("glm ") or name == "glm":  # transformers' own modules
        assert own["counted"] == {"no scores: this model's layers cannot be run apart": 2}
    else:
        assert own["counted"] == {}
        assert recomputed == 136, "a fifth, as asked for"


@pytest.mark.parametrize("name", [*PROVEN, *LATENT])
def test_a_moved_key_equals_the_key_computed_there(name: str, figures: dict[str, dict[str, Any]]) -> None:
    own = figures[name]
    assert own["moved"] < RELATIVE
    assert own["moved by one too many"] > FAR


@pytest.mark.parametrize("name", [*PROVEN, *LATENT])
def test_a_correction_takes_the_mean_deviation_away(name: str, figures: dict[str, dict[str, Any]]) -> None:
    own = figures[name]
    assert own["corrected, tokens"] == [1, 300]
    assert own["corrected"] < 1e-3
    assert own["corrected by another layer's"] > 0.1


@pytest.mark.parametrize("name", [*PROVEN, *LATENT])
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
