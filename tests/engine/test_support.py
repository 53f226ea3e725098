"""Engines that cannot be blended, judged from vLLM's own configuration before anything is computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.parity.tiny import Tiny, write

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("llama")
    write(Tiny("LlamaConfig", {}), made)
    return made


@pytest.mark.filterwarnings("ignore")  # vLLM's own
@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({}, ""),
        ({"tensor_parallel_size": 2}, ""),
        ({"pipeline_parallel_size": 2}, "pipeline parallel size"),
        ({"kv_cache_dtype": "fp8"}, "quantised KV cache"),
        (
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2}},
            "speculative decoding",
        ),
    ],
)
def test_an_engine_is_judged_by_its_configuration(folder: Path, asked: dict[str, Any], reason: str) -> None:
    import torch
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

    from agentcache.plugin.support import why_unsupported

    config = EngineArgs(model=str(folder), skip_tokenizer_init=True, **asked).create_engine_config()
    spec = FullAttentionSpec(block_size=128, num_kv_heads=2, head_size=32, dtype=torch.float32)
    kv = KVCacheConfig(num_blocks=8, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
    assert why_unsupported(config, kv) == reason
