"""Smaller K/V: quantised keys per channel, quantised values per token (KIVI), values rotated before (TurboQuant).

The slow obvious reference, in torch; on CUDA the same functions call Triton kernels (`quantise_gpu`). Layouts:

    x      [..., n, H, D]        any float dtype, D even; leading dimensions are usually the layers
    codes  [..., n, H, D]        uint8 (8 bits) or float8_e4m3fn (bits "fp8")
           [..., n, H, D/2]      uint8 (4 bits): component i in the low half, i + D/2 in the high half
    scale  keys [..., ceil(n / group), H, D], values [..., n, H, 1]; float16
    zero   as `scale`; what code 0 stands for. fp8 has none: None

    x[..., t, h, d] is about codes * scale + zero: those of t's group and of d (keys), or those of t (values)

Why so: keys have a few channels that are large for every token, values have not. A Hadamard rotation of each
head's vector spreads what is left of outliers over its components; it is its own inverse.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from agentcache.kernels import device

Bits = Literal[4, 8, "fp8"]
_FP8 = torch.float8_e4m3fn
_FP8_MAX = 448.0
_TINY = 2.0**-24  # float16's smallest positive number: a scale is never 0
_HUGE = 65504.0  # and its largest


@dataclass(frozen=True, slots=True)
class Quantised:
    """Codes with what they mean; shapes as in the module's docstring."""

    codes: torch.Tensor
    scale: torch.Tensor
    zero: torch.Tensor | None
    bits: Bits

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scale.nbytes + (0 if self.zero is None else self.zero.nbytes)


def quantise_keys(x: torch.Tensor, bits: Bits, group: int) -> Quantised:
    """Codes with one scale and zero a channel for every `group` tokens; the last group may be shorter."""
    if _on_gpu(x, bits):
        from agentcache.kernels import quantise_gpu

        return quantise_gpu.quantise_keys(x, bits, group)
    n = x.shape[-3]
    pieces = [_scales(x[..., start : start + group, :, :].float(), -3, bits) for start in range(0, n, group)]
    scale = torch.cat([scale for scale, _ in pieces], dim=-3)
    zero = torch.cat([zero for _, zero in pieces], dim=-3)
    return _encode(x.float(), scale, zero, _of_token(n, group, x.device), bits)


def dequantise_keys(q: Quantised, group: int, dtype: torch.dtype) -> torch.Tensor:
    """What `quantise_keys` was given, about: [..., n, H, D] in `dtype`."""
    if _on_gpu(q.codes, q.bits):
        from agentcache.kernels import quantise_gpu

        return quantise_gpu.dequantise_keys(q, group, dtype)
    rows = _of_token(q.codes.shape[-3], group, q.codes.device)
    return _decode(q, rows).to(dtype)


def quantise_values(x: torch.Tensor, bits: Bits, *, rotate: bool) -> Quantised:
    """Codes with one scale and zero a token and head."""
    if _on_gpu(x, bits):
        from agentcache.kernels import quantise_gpu

        return quantise_gpu.quantise_values(x, bits, rotate=rotate)
    x = hadamard(x.float()) if rotate else x.float()
    scale, zero = _scales(x, -1, bits)
    return _encode(x, scale, zero, None, bits)


def dequantise_values(q: Quantised, dtype: torch.dtype, *, rotate: bool) -> torch.Tensor:
    """What `quantise_values` was given, about: [..., n, H, D] in `dtype`."""
    if _on_gpu(q.codes, q.bits):
        from agentcache.kernels import quantise_gpu

        return quantise_gpu.dequantise_values(q, dtype, rotate=rotate)
    x = _decode(q, None)
    return (hadamard(x) if rotate else x).to(dtype)


def hadamard(x: torch.Tensor) -> torch.Tensor:
    """Rotate the last dimension, float32 [..., D], in blocks of the largest power of two that divides D.

    Orthonormal and symmetric: applied twice, it gives `x` back.
    """
    size = hadamard_size(x.shape[-1])
    shape = x.shape
    x = x.reshape(-1, size)
    half = 1
    while half < size:
        pairs = x.view(-1, size // (2 * half), 2, half)
        first, second = pairs[:, :, 0], pairs[:, :, 1]
        x = torch.stack([first + second, first - second], dim=2).view(-1, size)
        half *= 2
    return (x / math.sqrt(size)).view(shape)


def hadamard_size(dim: int) -> int:
    """The largest power of two that divides `dim`."""
    return dim & -dim


def pack_nibbles(codes: torch.Tensor) -> torch.Tensor:
    """uint8 [..., D] of values below 16 to [..., D/2]."""
    low, high = codes.chunk(2, dim=-1)
    return low | (high << 4)


def unpack_nibbles(packed: torch.Tensor) -> torch.Tensor:
    """uint8 [..., D/2] to [..., D]."""
    return torch.cat([packed & 15, packed >> 4], dim=-1)


def _on_gpu(x: torch.Tensor, bits: Bits) -> bool:
    return device.on_gpu_with_fp8(x) if bits == "fp8" else device.on_gpu(x)


def _scales(x: torch.Tensor, dim: int, bits: Bits) -> tuple[torch.Tensor, torch.Tensor]:
    """float16 scale and zero that cover the range of `x` along `dim`, which stays, of length 1."""
    if isinstance(bits, str):
        scale = x.abs().amax(dim, keepdim=True) / _FP8_MAX
        return scale.clamp(_TINY, _HUGE).half(), torch.zeros_like(scale).half()
    low, high = x.amin(dim, keepdim=True), x.amax(dim, keepdim=True)
    zero = low.clamp(-_HUGE, _HUGE).half()
    # from the rounded zero, so that the range still ends at `high`
    scale = (high - zero.float()) / (2**bits - 1)
    return scale.clamp(_TINY, _HUGE).half(), zero


def _encode(
    x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, rows: torch.Tensor | None, bits: Bits
) -> Quantised:
    wide_scale, wide_zero = _wide(scale, rows), _wide(zero, rows)
    if isinstance(bits, str):
        codes = (x / wide_scale).clamp(-_FP8_MAX, _FP8_MAX).to(_FP8)
        return Quantised(codes, scale, None, bits)
    codes = ((x - wide_zero) / wide_scale).round().clamp(0, 2**bits - 1).nan_to_num(0).to(torch.uint8)
    return Quantised(pack_nibbles(codes) if bits == 4 else codes, scale, zero, bits)


def _decode(q: Quantised, rows: torch.Tensor | None) -> torch.Tensor:
    """float32 [..., n, H, D]."""
    scale = _wide(q.scale, rows)
    if q.zero is None:
        return q.codes.float() * scale
    codes = unpack_nibbles(q.codes) if q.bits == 4 else q.codes
    return codes.float() * scale + _wide(q.zero, rows)


def _wide(x: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
    return x.float() if rows is None else x.float().index_select(-3, rows)


def _of_token(n: int, group: int, device: torch.device) -> torch.Tensor:
    """The group each of `n` tokens is in."""
    return torch.arange(n, device=device) // group
