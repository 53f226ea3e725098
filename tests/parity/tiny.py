"""Tiny models with random weights, one for each way of attending and of counting positions.

Weights are drawn wide: with the usual 0.02 all predictions are alike, and a broken mask goes unseen.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

VOCABULARY = 1024
MAX_POSITIONS = 4096
_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "initializer_range": 0.15,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_POSITIONS,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 64}
_MLA = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 512,  # with 64 rotary components the only shape vLLM's CPU MLA knows
    "q_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 64,
    "v_head_dim": 32,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "tie_word_embeddings": False,
    **_EXPERTS,
}
# vLLM 0.32's own rotary operator on CPUs misreads DeepSeek's queries, which are a view: without MLA its answers differ
# from those of transformers. Compiled, and so by default, vLLM does without the operator.
_NO_ROTARY_OPERATOR = (("compilation_config", {"custom_ops": ["all", "-rotary_embedding"]}),)
_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 1024}
_SLIDING = {"sliding_window": 256}


@dataclass(frozen=True, slots=True)
class Tiny:
    """One model.

    config: name of its transformers configuration class; changes: to the common arguments of all
    reason: what the engine says why it is not blended; "" if it is
    mla: run with vLLM's MLA attention; engine: further arguments of `LLM`
    silent: vLLM's CPU build starts with it, but cannot answer
    auto: transformers' class that makes the model; shaken: parameters that are not left at their first values, ones
    """

    config: str
    changes: dict[str, Any]
    reason: str = ""
    mla: bool = False
    engine: tuple[tuple[str, Any], ...] = ()
    silent: bool = False
    auto: str = "AutoModelForCausalLM"
    shaken: str = ""


SUPPORTED = {
    "llama": Tiny("LlamaConfig", {"tie_word_embeddings": False}),
    "llama, tied": Tiny("LlamaConfig", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    "llama3 scaling": Tiny(
        "LlamaConfig",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 5e5,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 512,
            }
        },
    ),
    "linear scaling": Tiny(
        "LlamaConfig", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}
    ),
    "dynamic ntk": Tiny(
        "LlamaConfig",
        {
            "rope_parameters": {
                "rope_type": "dynamic",
                "rope_theta": 1e4,
                "factor": 2.0,
                "max_trained_positions": 1024,
            }
        },
    ),
    "qwen2, yarn": Tiny("Qwen2Config", {"rope_parameters": _YARN}),
    "qwen3": Tiny("Qwen3Config", {"head_dim": 64}),
    "qwen3-moe": Tiny("Qwen3MoeConfig", {"head_dim": 32, "num_experts": 4, **_EXPERTS}),
    "mistral": Tiny("MistralConfig", {"sliding_window": None}),
    "phi3": Tiny("Phi3Config", {}),
    "phi3, longrope": Tiny(
        "Phi3Config",
        {
            "original_max_position_embeddings": 1024,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "short_factor": [1.0] * 16,
                "long_factor": [1.0 + 0.5 * i for i in range(16)],
                "original_max_position_embeddings": 1024,
            },
        },
    ),
    "gemma": Tiny("GemmaConfig", {"head_dim": 64}),
    "glm": Tiny("GlmConfig", {"head_dim": 32, "partial_rotary_factor": 0.5}),
    "glm4": Tiny("Glm4Config", {"head_dim": 32, "partial_rotary_factor": 0.5}),
    "deepseek-v2": Tiny("DeepseekV2Config", _MLA, engine=_NO_ROTARY_OPERATOR),
    "deepseek-v3": Tiny(
        "DeepseekV3Config",
        {
            **_MLA,
            "topk_method": "noaux_tc",
            "rope_parameters": {**_YARN, "mscale": 1.0, "mscale_all_dim": 0.7},
        },
        engine=_NO_ROTARY_OPERATOR,
    ),
}

# Refused on CPUs (below), where a prompt's middle cannot look back at a context. What needs no context is as on a GPU:
# pages of latent vectors, of which the last components are rotary, and a prompt computed in one row.
LATENT = {
    "deepseek-v2, MLA": Tiny(
        "DeepseekV2Config",
        _MLA,
        mla=True,
        engine=(
            *_NO_ROTARY_OPERATOR,
            ("attention_backend", "CPU_MLA"),
            ("max_num_batched_tokens", MAX_POSITIONS),
        ),
    ),
}

# Where a GPU is (benchmarks/gpu.sh), in the dimensions of the real models, which its kernels are made for.
ON_GPU = {
    "deepseek-v2, MLA on a GPU": Tiny(
        "DeepseekV2Config",
        {
            **_MLA,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "qk_nope_head_dim": 128,
            "v_head_dim": 128,
        },
        mla=True,
    ),
}

_DIFFERENT = "layers with different kinds of attention: "
_UNKNOWN = "unknown position scheme: "
_NOT_AS_SAID = _UNKNOWN + "keys do not move as the rotary embedding says"
_NO_ROTARY = _UNKNOWN + "an attention layer has no rotary embedding"

REFUSED = {
    "mistral, sliding window": Tiny("MistralConfig", _SLIDING, "sliding-window attention"),
    "gemma2": Tiny(
        "Gemma2Config", {"head_dim": 32, **_SLIDING}, _DIFFERENT + "full attention, sliding-window attention"
    ),
    "gemma3": Tiny(
        "Gemma3TextConfig",
        {
            "head_dim": 32,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            **_SLIDING,
        },
        _DIFFERENT + "full attention, sliding-window attention",
    ),
    "gpt-oss, sinks": Tiny(
        "GptOssConfig",
        {"head_dim": 32, "num_local_experts": 4, **_SLIDING},
        _DIFFERENT + "full attention, sliding-window attention",
    ),
    "qwen3-next, hybrid": Tiny(
        "Qwen3NextConfig",
        {
            "head_dim": 32,
            "num_experts": 4,
            "layer_types": ["linear_attention", "linear_attention", "full_attention"],
            **_EXPERTS,
        },
        _DIFFERENT + "full attention, recurrent layers",
        silent=True,
    ),
    "mamba": Tiny("MambaConfig", {}, "recurrent layers", silent=True),
    "gpt2, learned positions": Tiny("GPT2Config", {"n_positions": MAX_POSITIONS}, _NO_ROTARY),
    "bloom, alibi": Tiny("BloomConfig", {}, _NO_ROTARY),
    "smollm3, a layer without positions": Tiny("SmolLM3Config", {"no_rope_layer_interval": 2}, _NOT_AS_SAID),
    "hunyuan, norm behind the rotation": Tiny(
        "HunYuanDenseV1Config", {"head_dim": 32}, _NOT_AS_SAID, shaken="key_layernorm"
    ),
    "deepseek-v2, MLA on a CPU": Tiny(
        "DeepseekV2Config",
        _MLA,
        "MLA attention on a CPU",
        mla=True,
        engine=(("dtype", "bfloat16"), ("max_num_batched_tokens", MAX_POSITIONS)),
    ),
    "bert, encoder": Tiny(
        "BertConfig",
        {},
        "no KV cache",
        engine=(("max_num_batched_tokens", MAX_POSITIONS), ("skip_tokenizer_init", False)),
        silent=True,
        auto="AutoModel",
    ),
}


def write(tiny: Tiny, folder: Path) -> None:
    """Make the model and save it into `folder`."""
    import tokenizers
    import torch
    import transformers

    config = getattr(transformers, tiny.config)(**{**_COMMON, **tiny.changes})
    torch.manual_seed(0)
    model = getattr(transformers, tiny.auto).from_config(config, dtype=torch.float32)
    for name, weights in model.named_parameters():
        if tiny.shaken and tiny.shaken in name:
            torch.nn.init.uniform_(weights, 0.2, 2.0)
    model.save_pretrained(folder)
    if dict(tiny.engine).get("skip_tokenizer_init") is False:
        words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[PAD]": 0, "[UNK]": 1}, "[UNK]"))
        transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]").save_pretrained(
            folder
        )
