"""How large a model's K/V and its work are, from its config alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentcache.errors import ModelError

_DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What matters of a model's config.

    kv_heads, head_size: of one layer's keys (values have as many); value_bytes: of one number as the engine keeps it
    hidden_size, intermediate_size, heads, vocabulary: for the number of weights; experts: those a token passes
    latent: numbers a token and layer of a latent (MLA) cache; 0 for ordinary attention
    """

    name: str
    layers: int
    kv_heads: int
    head_size: int
    value_bytes: int
    hidden_size: int
    intermediate_size: int
    heads: int
    vocabulary: int
    experts: int = 1
    latent: int = 0

    @classmethod
    def of_folder(cls, folder: Path) -> ModelShape:
        """From `config.json`. ModelError if it is missing or says too little."""
        path = folder / "config.json"
        try:
            config = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise ModelError(f"{path} cannot be read: {error}") from error
        return cls.of_config(folder.name, config)

    @classmethod
    def of_config(cls, name: str, config: Mapping[str, Any]) -> ModelShape:
        """From a transformers config. ModelError if it says too little."""
        text = config.get("text_config") or config
        try:
            heads = int(text["num_attention_heads"])
            hidden = int(text["hidden_size"])
            dtype = str(text.get("dtype") or text.get("torch_dtype") or "bfloat16").removeprefix("torch.")
            rank = text.get("kv_lora_rank")
            return cls(
                name=name,
                layers=int(text["num_hidden_layers"]),
                kv_heads=int(text.get("num_key_value_heads") or heads),
                head_size=int(text.get("head_dim") or hidden // heads),
                value_bytes=_DTYPE_BYTES.get(dtype, 2),
                hidden_size=hidden,
                intermediate_size=int(
                    text.get("moe_intermediate_size") or text.get("intermediate_size") or 4 * hidden
                ),
                heads=heads,
                vocabulary=int(text["vocab_size"]),
                experts=int(text.get("num_experts_per_tok") or 1),
                latent=int(rank) + int(text.get("qk_rope_head_dim") or 0) if rank else 0,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(f"the config of {name} does not say what {error} is") from error

    def bytes_per_token(self, value_bytes: float | None = None) -> int:
        """Bytes of one token's keys and values in all layers; `value_bytes` a number, else the model's own."""
        numbers = self.latent or 2 * self.kv_heads * self.head_size
        return int(self.layers * numbers * (self.value_bytes if value_bytes is None else value_bytes))

    @property
    def active_parameters(self) -> int:
        """Weights a token passes through in the layers: attention and a gated MLP."""
        attention = self.hidden_size * self.head_size * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.hidden_size * self.intermediate_size * self.experts)
