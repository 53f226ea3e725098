"""Which rotary modules give a rotation, and what they say when they do not; vLLM's own modules and transformers'."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from vllm.config import CompilationConfig, VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.rotary_embedding import get_rope

from agentcache.blend.rope import KeyShift, UnsupportedPositions, possible_shifts

HEAD, POSITIONS = 32, 512


@pytest.fixture(autouse=True)
def _vllm() -> Iterator[None]:
    with set_current_vllm_config(VllmConfig(compilation_config=CompilationConfig(mode=0))):
        yield


def rope(**parameters: Any) -> torch.nn.Module:
    module: torch.nn.Module = get_rope(
        HEAD,
        POSITIONS,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4, **parameters},
        dtype=torch.float32,
    )
    return module


def of_transformers(kind: str) -> torch.nn.Module:
    parameters = {"rope_type": kind, "rope_theta": 1e4, "factor": 2.0}
    config = LlamaConfig(
        hidden_size=2 * HEAD,
        num_attention_heads=2,
        max_position_embeddings=POSITIONS,
        rope_parameters=parameters,
    )
    module: torch.nn.Module = LlamaRotaryEmbedding(config)
    return module


def test_both_kinds_of_modules_say_the_same() -> None:
    ours = KeyShift.of_layers([rope()])
    theirs = KeyShift.of_layers([of_transformers("default")], torch.float32, POSITIONS)
    torch.testing.assert_close(ours.table, theirs.table)
    other = KeyShift.of_layers([rope(rope_theta=1e3)])
    assert (other.table - ours.table).abs().max() > 0.1


@pytest.mark.parametrize(
    ("modules", "reason"),
    [
        (list, "no attention layer found"),
        (lambda: [rope(), None], "an attention layer has no rotary embedding"),
        (lambda: [rope(), rope(rope_theta=1e3)], "rotary tables differ between layers"),
        (lambda: [rope(mrope_section=[8, 4, 4])], "MRotaryEmbedding"),
        (lambda: [of_transformers("dynamic")], "LlamaRotaryEmbedding of kind dynamic"),
        (lambda: [torch.nn.Identity()], "Identity"),
    ],
)
def test_what_gives_no_one_rotation_is_refused(modules: Any, reason: str) -> None:
    with pytest.raises(UnsupportedPositions, match=reason):
        KeyShift.of_layers(modules(), torch.float32, POSITIONS)


class Attention(torch.nn.Module):
    """An attention layer beside a rotary module, or below one."""

    def __init__(self, rotary: torch.nn.Module | None, own: bool) -> None:
        super().__init__()
        self.attn = torch.nn.Identity()
        if own:
            self.rotary_emb = rotary


def test_the_nearest_rotary_module_counts_and_none_is_an_answer() -> None:
    model = torch.nn.Module()
    model.rotary_emb = of_transformers("default")
    model.layers = torch.nn.ModuleList([Attention(None, False), Attention(None, False)])
    attention = {str(i): layer.attn for i, layer in enumerate(model.layers)}
    root = torch.nn.Module()
    root.model = model
    shifts = possible_shifts(root, attention, HEAD, torch.float32, POSITIONS)
    assert [(shift.neox, shift.first) for shift in shifts] == [(True, 0), (False, 0)], "it does not say how"
    partly = possible_shifts(root, attention, HEAD + 16, torch.float32, POSITIONS)
    assert {(shift.neox, shift.first) for shift in partly} == {(True, 0), (False, 0), (True, 16), (False, 16)}
    model.layers[1] = Attention(None, True)
    attention["1"] = model.layers[1].attn
    with pytest.raises(UnsupportedPositions, match="no rotary embedding"):
        possible_shifts(root, attention, HEAD, torch.float32, POSITIONS)
