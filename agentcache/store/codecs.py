"""How an entry's K/V is written: as it is, or smaller. A tier's setting says how it writes; every codec is read.

    raw     as it is, bit for bit
    int8    keys per channel (128 tokens share a scale), values per token
    fp8     the same with e4m3 numbers: errors are relative to each number, where int8's are to the largest
    mixed   keys as int8, values as int4: keys decide where attention looks, and forgive less
    int4    keys per channel (32 tokens share a scale), values per token, rotated before

Sizes, speeds and what each does to a model's answers: `benchmarks/store.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import torch

from agentcache.errors import UsageError
from agentcache.kernels.quantise import (
    Bits,
    Quantised,
    dequantise_keys,
    dequantise_values,
    quantise_keys,
    quantise_values,
)
from agentcache.store.layout import EntryLayout


class Part(NamedTuple):
    """One tensor of an encoded entry."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class Codec(Protocol):
    @property
    def name(self) -> str: ...

    def parts(self, layout: EntryLayout, num_tokens: int) -> list[Part]:
        """The tensors that `encode` makes, in the order they are written. Each starts at a multiple of its item's
        size when the first one does."""

    def encode(self, kv: torch.Tensor) -> list[torch.Tensor]:
        """[2, L, n, H, D] on the CPU to contiguous tensors."""

    def decode(self, layout: EntryLayout, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """[2, L, n, H, D] from what `encode` made; may share memory with it."""


class Raw:
    """As it is."""

    @property
    def name(self) -> str:
        return "raw"

    def parts(self, layout: EntryLayout, num_tokens: int) -> list[Part]:
        return [Part("kv", layout.dtype, layout.shape(num_tokens))]

    def encode(self, kv: torch.Tensor) -> list[torch.Tensor]:
        return [kv]

    def decode(self, layout: EntryLayout, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        return tensors[0]


@dataclass(frozen=True, slots=True)
class Lossy:
    """Keys and values quantised, with scales and zeros in float16. Only for layouts with keys and values."""

    name: str
    key_bits: Bits
    value_bits: Bits
    group: int

    def parts(self, layout: EntryLayout, num_tokens: int) -> list[Part]:
        layers, heads, dim = layout.layers, layout.heads, layout.head_dim
        of_keys = (layers, -(-num_tokens // self.group), heads, dim)
        of_values = (layers, num_tokens, heads, 1)
        parts = [Part("key_scale", torch.float16, of_keys), Part("value_scale", torch.float16, of_values)]
        if self.key_bits != "fp8":
            parts += [Part("key_zero", torch.float16, of_keys), Part("value_zero", torch.float16, of_values)]
        for name, bits in (("keys", self.key_bits), ("values", self.value_bits)):
            dtype = torch.float8_e4m3fn if bits == "fp8" else torch.uint8
            parts.append(Part(name, dtype, (layers, num_tokens, heads, dim // 2 if bits == 4 else dim)))
        return parts

    def encode(self, kv: torch.Tensor) -> list[torch.Tensor]:
        keys = quantise_keys(kv[0], self.key_bits, self.group)
        values = quantise_values(kv[1], self.value_bits, rotate=self.value_bits == 4)
        zeros = [zero for zero in (keys.zero, values.zero) if zero is not None]
        tensors = [keys.scale, values.scale, *zeros, keys.codes, values.codes]
        return [tensor.contiguous() for tensor in tensors]

    def decode(self, layout: EntryLayout, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        key_scale, value_scale, *zeros, key_codes, value_codes = tensors
        key_zero, value_zero = zeros or (None, None)
        keys = Quantised(key_codes, key_scale, key_zero, self.key_bits)
        values = Quantised(value_codes, value_scale, value_zero, self.value_bits)
        kv = torch.empty(layout.shape(key_codes.shape[1]), dtype=layout.dtype)
        if layout.dtype == torch.bfloat16:
            # not before it is needed: numba must not be loaded when vLLM's CPU worker starts
            from agentcache.kernels.quantise_cpu import keys_to_bf16, values_to_bf16

            keys_to_bf16(keys, self.group, kv[0])
            values_to_bf16(values, kv[1])
        else:
            kv[0] = dequantise_keys(keys, self.group, layout.dtype)
            kv[1] = dequantise_values(values, layout.dtype, rotate=self.value_bits == 4)
        return kv


RAW: Final = Raw()
CODECS: Final[dict[str, Codec]] = {
    codec.name: codec
    for codec in (
        RAW,
        Lossy("int8", 8, 8, 128),
        Lossy("fp8", "fp8", "fp8", 128),
        Lossy("mixed", 8, 4, 128),
        Lossy("int4", 4, 4, 32),
    )
}


def codec_named(name: str, layout: EntryLayout) -> Codec:
    """The codec called `name`, or raw where it does not fit `layout`. UsageError if there is none of that name."""
    if name not in CODECS:
        raise UsageError(f"{name!r} is not a codec: use one of {', '.join(CODECS)}")
    return CODECS[name] if layout.parts == 2 and layout.head_dim % 2 == 0 else RAW


def num_bytes(codec: Codec, layout: EntryLayout, num_tokens: int) -> int:
    """Bytes of an entry's K/V as `codec` writes it."""
    return sum(part.nbytes for part in codec.parts(layout, num_tokens))
