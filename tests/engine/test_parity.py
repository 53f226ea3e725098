"""Blending against full prefill, on the real model in float32. Every comparison has a control that must differ."""

from __future__ import annotations

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM
from vllm.config import CompilationConfig, VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.rotary_embedding import get_rope

from agentcache.blend.rope import KeyShift
from agentcache.kernels.rotate import rotate_keys
from tests.engine.serving import Answer, Server, largest_difference

pytestmark = pytest.mark.engine


def test_everything_recomputed_equals_full_prefill(
    server: Server, plain: dict[str, Answer], prompts: dict[str, list[int]]
) -> None:
    answer = server.ask(prompts["shuffled"], salt="all", mode="fast", strategy="all", min_saved_tokens=0)
    assert answer.counters["recomputed_tokens"] == 1800, "all matched tokens go through virtual requests"
    assert answer.tokens == plain["shuffled"].tokens
    whole = server.ask(
        prompts["shuffled"],
        salt="all 2",
        whole_vocabulary=True,
        mode="fast",
        strategy="all",
        min_saved_tokens=0,
    )
    assert len(whole.first) > 48_000, "the whole vocabulary (a few tokens print alike)"
    assert largest_difference(whole.first, plain["all logprobs"].first) < 1e-3


def test_nothing_recomputed_differs_from_full_prefill(
    server: Server, plain: dict[str, Answer], prompts: dict[str, list[int]]
) -> None:
    """The control of the test above: other K/V on the same pages is seen."""
    answer = server.ask(prompts["shuffled"], salt="none", mode="fast", strategy="none")
    assert answer.counters["reused_tokens"] == 1800
    assert largest_difference(answer.first, plain["shuffled"].first) > 1e-2


def test_boundary_tokens_come_closer_than_nothing(
    server: Server, plain: dict[str, Answer], prompts: dict[str, list[int]]
) -> None:
    none = server.ask(prompts["shuffled"], salt="b0", mode="fast", strategy="none")
    some = server.ask(
        prompts["shuffled"],
        salt="b128",
        mode="fast",
        strategy="boundary",
        boundary_tokens=128,
        budget=None,
    )
    assert some.counters["recomputed_tokens"] == 3 * 128, (
        "three files, inner blocks follow each other as in the file"
    )
    reference = plain["shuffled"].first
    assert largest_difference(some.first, reference) < largest_difference(none.first, reference)


def test_a_file_in_its_own_place_needs_no_recompute_and_is_equal(
    server: Server, plain: dict[str, Answer], prompts: dict[str, list[int]]
) -> None:
    answer = server.ask(prompts["in place"], salt="in place", mode="fast")
    assert (answer.counters["reused_tokens"], answer.counters["recomputed_tokens"]) == (700, 0)
    assert answer.tokens == plain["in place"].tokens
    assert largest_difference(answer.first, plain["in place"].first) < 1e-3


@pytest.mark.parametrize("distance", [1, 777, 3000])
def test_a_moved_entry_equals_the_keys_computed_there(
    server: Server, model_folder: str, texts: dict[str, list[int]], distance: int
) -> None:
    """transformers computes the first block's keys at the new positions; the stored entry is rotated there."""
    size = len(texts["shlex"]) // 3
    ids = torch.tensor([texts["shlex"][:size]])
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    positions = torch.arange(distance, distance + size)[None]
    with torch.inference_mode():
        cache = model(ids, position_ids=positions, use_cache=True).past_key_values
    expected = torch.stack([layer.keys[0].transpose(0, 1) for layer in cache.layers])  # [L, n, H, D]

    entry = stored_entry(server, texts["shlex"][:size])
    with set_current_vllm_config(VllmConfig(compilation_config=CompilationConfig(mode=0))):
        rotary = get_rope(
            head_size=model.config.head_dim,
            max_position=model.config.max_position_embeddings,
            rope_parameters=model.config.rope_parameters,
            dtype=torch.float32,
        )
    shift = KeyShift.of_layers([rotary])
    old = torch.arange(size)
    cos, sin = shift.cos_sin(old, old + distance)
    moved = rotate_keys(entry[0], cos, sin, neox=shift.neox)
    scale = expected.abs().amax()
    assert (moved - expected).abs().max() / scale < 1e-4
    wrong_cos, wrong_sin = shift.cos_sin(old, old + distance + 1)
    assert (
        rotate_keys(entry[0], wrong_cos, wrong_sin, neox=shift.neox) - expected
    ).abs().max() / scale > 1e-2


def stored_entry(server: Server, tokens: list[int]) -> torch.Tensor:
    """K/V of the entry that holds exactly these tokens, from its file."""
    for path in server.store_dir.rglob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            if file.get_tensor("tokens").tolist() == tokens:
                kv: torch.Tensor = file.get_tensor("kv")
                return kv
    raise AssertionError("no entry file holds these tokens")
