"""Which engines can be blended: decided once from vLLM's own configuration, with a reason when not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentcache.store import EntryLayout

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig


def why_unsupported(config: VllmConfig, kv: KVCacheConfig) -> str:
    """Why no request of this engine can be blended; "" if they can."""
    from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec

    if len(kv.kv_cache_groups) != 1:
        return "layers with different kinds of attention"
    spec = kv.kv_cache_groups[0].kv_cache_spec
    if isinstance(spec, MLAAttentionSpec):
        return "MLA attention"
    if type(spec) is not FullAttentionSpec:
        return f"attention kind {type(spec).__name__}"
    if spec.sliding_window is not None or spec.attention_chunk_size is not None:
        return "sliding-window attention"
    if config.model_config.is_encoder_decoder:
        return "encoder-decoder model"
    if config.speculative_config is not None:
        return "speculative decoding"
    parallel = config.parallel_config
    for name in ("pipeline_parallel_size", "decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(parallel, name, 1) > 1:
            return name.replace("_", " ")
    if config.cache_config.cache_dtype not in ("auto", "bfloat16", "float16"):
        return "quantised KV cache"
    return ""


def layout_of(kv: KVCacheConfig, num_layers: int | None = None) -> EntryLayout:
    """The shape of one token's K/V on this rank, from the first KV cache group."""
    group = kv.kv_cache_groups[0]
    spec: Any = group.kv_cache_spec
    return EntryLayout(
        parts=2,
        layers=num_layers or len(group.layer_names),
        heads=spec.num_kv_heads,
        head_dim=spec.head_size,
        dtype=spec.dtype,
    )


def engine_facts(config: VllmConfig, kv: KVCacheConfig) -> dict[str, Any]:
    """What changes K/V besides the weights: part of the engine's fingerprint."""
    model = config.model_config
    spec: Any = kv.kv_cache_groups[0].kv_cache_spec
    return {
        "dtype": str(model.dtype),
        "kv_dtype": str(spec.dtype),
        "quantization": str(model.quantization),
        "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
        "rope": repr(getattr(model.hf_text_config, "rope_parameters", None)),
        "revision": str(model.revision),
    }
