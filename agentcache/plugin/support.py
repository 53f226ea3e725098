"""Which engines can be blended: decided once from vLLM's own configuration, with a reason when not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentcache.store import EntryLayout

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig


_KINDS = {
    "FullAttentionSpec": "full attention",
    "MLAAttentionSpec": "MLA attention",
    "SlidingWindowSpec": "sliding-window attention",
    "SlidingWindowMLASpec": "sliding-window attention",
    "ChunkedLocalAttentionSpec": "chunked local attention",
    "CrossAttentionSpec": "cross attention",
    "MambaSpec": "recurrent layers",
}


def why_unsupported(config: VllmConfig, kv: KVCacheConfig) -> str:
    """Why no request of this engine can be blended; "" if they can, as far as its configuration tells.

    Its positions are judged on the engine itself (agentcache.blend.trial).
    """
    from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec

    if config.model_config.is_encoder_decoder:
        return "encoder-decoder model"
    kinds = sorted({_kind(group.kv_cache_spec) for group in kv.kv_cache_groups})
    if not kinds:
        return "no KV cache"
    if len(kinds) > 1 or len(kv.kv_cache_groups) > 1:
        return f"layers with different kinds of attention: {', '.join(kinds)}"
    spec = kv.kv_cache_groups[0].kv_cache_spec
    if type(spec) is MLAAttentionSpec and config.device_config.device_type == "cpu":
        return "MLA attention on a CPU"  # vLLM's cannot look back at a context from a prompt's middle
    if type(spec) not in (FullAttentionSpec, MLAAttentionSpec):
        return kinds[0]
    if spec.sliding_window is not None:
        return "sliding-window attention"
    if spec.attention_chunk_size is not None:
        return "chunked local attention"
    if config.speculative_config is not None:
        return "speculative decoding"
    parallel = config.parallel_config
    for name in ("pipeline_parallel_size", "decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(parallel, name, 1) > 1:
            return name.replace("_", " ")
    if config.cache_config.cache_dtype not in ("auto", "bfloat16", "float16"):
        return "quantised KV cache"
    return ""


def _kind(spec: Any) -> str:
    name = type(spec).__name__
    return _KINDS.get(name, f"attention kind {name}")


def layout_of(kv: KVCacheConfig, num_layers: int | None = None) -> EntryLayout:
    """The shape of one token's K/V on this rank, from the first KV cache group."""
    from vllm.v1.kv_cache_interface import MLAAttentionSpec

    group = kv.kv_cache_groups[0]
    spec: Any = group.kv_cache_spec
    return EntryLayout(
        parts=1 if isinstance(spec, MLAAttentionSpec) else 2,  # MLA keeps one latent vector a token
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
