"""Every situation that vLLM offers: the answer is the one of a full prefill, or blending is refused with a reason.

The engines run in `situations`, in two processes beside each other; docs/engine.md lists what each of them covers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.engine.situations import CHUNK, SITUATIONS

pytestmark = pytest.mark.engine
ROOT = Path(__file__).resolve().parents[2]
EQUAL = 1e-3
"""Over the whole vocabulary's logprobs, in float32."""
FAR = 1e-2
"""What is wrong on purpose must differ so much."""
BLENDED = ["prefix caching", "no prefix caching", "no chunked prefill", "asynchronous", "compiled", "LoRA"]
FULL_POOL = ["prefix caching", "no prefix caching", "asynchronous"]
HALF_PRECISION = {"bfloat16": 0.5, "float16": 0.05}
"""vLLM's own chunks of different sizes differ so much, too; what is wrong differs by more than 2."""
REFUSED = {"speculative decoding": "speculative decoding", "fp8 KV cache": "quantised KV cache"}
NO_FP8 = "FP8 KV cache on CPU requires x86 with AVX-512 or AMX"
"""What vLLM itself says on other processors; `test_support` has our side of it everywhere."""
Figures = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> Figures:
    """What `situations` prints, by name."""
    halves = []
    for names in (list(SITUATIONS)[0::2], list(SITUATIONS)[1::2]):
        folder = tmp_path_factory.mktemp("situations")
        with (folder / "log").open("wb") as log:
            halves.append(
                subprocess.Popen(
                    [sys.executable, "-m", "tests.engine.situations", str(folder), *names],
                    cwd=ROOT,
                    stdout=subprocess.PIPE,
                    stderr=log,
                )
            )
    lines = [line for half in halves for line in half.communicate(timeout=1000)[0].decode().splitlines()]
    assert [half.returncode for half in halves] == [0, 0], "see the log in the temporary folder"
    found = {one["name"]: one for one in (json.loads(line) for line in lines if line.startswith("{"))}
    if where := os.environ.get("AGENTCACHE_SITUATIONS_JSON"):
        Path(where).write_text(json.dumps(found, indent=1))
    return found


def test_every_situation_is_judged() -> None:
    assert {*BLENDED, *HALF_PRECISION, *REFUSED} == set(SITUATIONS)


@pytest.mark.parametrize("name", BLENDED)
def test_blended_equals_full_prefill(name: str, figures: Figures) -> None:
    own = figures[name]
    assert own.get("error") is None
    assert own["reason"] == own["fallback"] == ""
    assert own["all"] < EQUAL
    assert own["in place"] < EQUAL
    assert own["none"] > FAR, "a wrong context is seen"
    assert (own["all, tokens"], own["in place, tokens"]) == (680, 750), "all went through the plug-in"
    if name == "LoRA":  # each of the engine's tokens has an adapter or none: ours stand apart
        assert own["forwards"]["joined"] == 0 < own["forwards"]["apart"]
    else:
        assert own["forwards"]["joined"] > 0


@pytest.mark.parametrize("name", HALF_PRECISION)
def test_half_precision_agrees_as_far_as_it_goes(name: str, figures: Figures) -> None:
    own = figures[name]
    assert own.get("error") is None
    assert own["fallback"] == ""
    assert own["all"] < HALF_PRECISION[name]
    assert own["in place"] < HALF_PRECISION[name]
    assert own["none"] > 4 * HALF_PRECISION[name]


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_answers_exactly_and_is_counted(name: str, figures: Figures) -> None:
    own = figures[name]
    if NO_FP8 in own.get("error", ""):
        pytest.skip(f"vLLM: {NO_FP8}")
    assert own.get("error") is None
    assert own["reason"] == own["fallback"] == REFUSED[name]
    assert own["reused"] == 0
    assert own["difference"] < EQUAL
    assert own["tokens"]
    assert own["counted"][REFUSED[name]] >= 1


def test_the_situations_are_what_their_names_say(figures: Figures) -> None:
    """vLLM changes settings by itself where it thinks that they do not fit."""
    assert not figures["no chunked prefill"]["chunked"]
    assert figures["prefix caching"]["chunked"]
    assert figures["asynchronous"]["async"]
    assert not figures["prefix caching"]["async"], "vLLM's default on a CPU"


@pytest.mark.parametrize("name", FULL_POOL)
def test_a_preempted_request_comes_back_with_the_same_answer(name: str, figures: Figures) -> None:
    own = figures[name]
    assert own["preempted"] >= 1
    assert own["preempted, loads"] > 3, "what was thrown out was blended again"
    assert own["preempted, reused"] > 100
    assert own["preempted, tokens"], "200 tokens of each, as if it had been alone"


@pytest.mark.parametrize("name", FULL_POOL)
def test_many_at_once_answer_as_alone_and_no_step_is_longer_than_a_chunk(name: str, figures: Figures) -> None:
    own = figures[name]
    assert own["at once"] < EQUAL
    assert own["at once, tokens"]
    assert own["at once, blended"] > 200
    assert own["most in a step"] > 1, "loads share a step"
    assert own["largest step"] <= max(CHUNK, own["largest request"])


@pytest.mark.parametrize("name", FULL_POOL)
def test_several_answers_of_one_prompt(name: str, figures: Figures) -> None:
    """vLLM gives the answers of a request with a seed seeds of their own, one after the other."""
    assert figures[name]["n"]
    assert figures[name]["n, differ"]


def test_adapters_are_left_alone_and_disturb_nobody(figures: Figures) -> None:
    own = figures["LoRA"]
    assert own["the adapter changes answers"] > FAR
    assert own["with an adapter"] < EQUAL
    assert own["with an adapter, fallback"] == own["stored with an adapter, fallback"] == "LoRA"
    assert own["stored with an adapter"] == 0, "an entry holds what the model itself computes"
    assert own["beside it"] < EQUAL
    assert own["beside it, recomputed"] == 680
