"""The shape of an entry's K/V: one CPU tensor [parts, layers, tokens, heads, head_dim]."""

from __future__ import annotations

import json
from dataclasses import dataclass

import torch

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""safetensors' names of the dtypes that K/V may have."""


@dataclass(frozen=True, slots=True)
class EntryLayout:
    """Everything about the K/V tensor but the number of tokens.

    parts: 2, keys then values
    layers, heads, head_dim: of the model, as seen by one tensor-parallel rank
    dtype: bfloat16, float16 or float32
    """

    parts: int
    layers: int
    heads: int
    head_dim: int
    dtype: torch.dtype

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES.values():
            raise ValueError(f"K/V dtype {self.dtype} is not one of {', '.join(map(str, DTYPES.values()))}")
        if min(self.parts, self.layers, self.heads, self.head_dim) < 1:
            raise ValueError(f"every dimension of {self} must be at least 1")

    @property
    def token_bytes(self) -> int:
        """Bytes of K/V a token takes, all layers together."""
        return self.parts * self.layers * self.heads * self.head_dim * self.dtype.itemsize

    @property
    def dtype_name(self) -> str:
        """The dtype as safetensors calls it."""
        return next(name for name, dtype in DTYPES.items() if dtype == self.dtype)

    def shape(self, num_tokens: int) -> tuple[int, int, int, int, int]:
        return (self.parts, self.layers, num_tokens, self.heads, self.head_dim)

    def to_json(self) -> str:
        return json.dumps([self.parts, self.layers, self.heads, self.head_dim, self.dtype_name])

    @classmethod
    def from_json(cls, text: str) -> EntryLayout:
        parts, layers, heads, head_dim, dtype = json.loads(text)
        return cls(parts, layers, heads, head_dim, DTYPES[dtype])
