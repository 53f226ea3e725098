"""Reading quantised K/V into bfloat16 on the CPU, in one pass over memory (numba, no interpreter lock).

Twins of `dequantise_keys` and `dequantise_values`: the same arguments, C-contiguous, with float32 scales and zeros.
Results differ from the reference's by the rounding of float32 sums alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from agentcache.kernels.quantise import Quantised, hadamard_size
from agentcache.match.jit import compiled

Bytes = npt.NDArray[np.uint8]
Halves = npt.NDArray[np.uint16]
Floats = npt.NDArray[np.float32]
_WIDTH = 32
_FROM_FP8 = np.float32(2.0**120)
"""An e4m3 number without its sign, shifted by 20 bits, is a float32 that is too small by this factor."""


@compiled
def _round(wide: Any, out: Any) -> None:
    """float32 bits [D] to bfloat16 bits, to the nearest, ties to even."""
    for d in range(len(out)):
        odd = (wide[d] >> np.uint32(16)) & np.uint32(1)
        out[d] = np.uint16((wide[d] + np.uint32(0x7FFF) + odd) >> np.uint32(16))


@compiled
def keys4(codes: Bytes, scale: Floats, zero: Floats, group: int, out: Halves) -> None:
    """codes [n, H, D/2]; scale, zero [groups, H, D]; out: bfloat16 bits [n, H, D]."""
    count, heads, dim = out.shape
    half = dim // 2
    row = np.empty(dim, np.float32)
    bits = row.view(np.uint32)
    for t in range(count):
        g = t // group
        for h in range(heads):
            for d in range(half):
                low = np.float32(codes[t, h, d] & np.uint8(15))
                high = np.float32(codes[t, h, d] >> np.uint8(4))
                row[d] = low * scale[g, h, d] + zero[g, h, d]
                row[half + d] = high * scale[g, h, half + d] + zero[g, h, half + d]
            _round(bits, out[t, h])


@compiled
def keys8(codes: Bytes, scale: Floats, zero: Floats, group: int, out: Halves) -> None:
    """As `keys4`, codes [n, H, D]."""
    count, heads, dim = out.shape
    row = np.empty(dim, np.float32)
    bits = row.view(np.uint32)
    for t in range(count):
        g = t // group
        for h in range(heads):
            for d in range(dim):
                row[d] = np.float32(codes[t, h, d]) * scale[g, h, d] + zero[g, h, d]
            _round(bits, out[t, h])


@compiled
def keys_fp8(codes: Bytes, scale: Floats, group: int, out: Halves) -> None:
    """As `keys8`, codes: the bits of e4m3 numbers."""
    count, heads, dim = out.shape
    raw = np.empty(dim, np.uint32)
    row = raw.view(np.float32)
    for t in range(count):
        g = t // group
        for h in range(heads):
            for d in range(dim):
                code = np.uint32(codes[t, h, d])
                raw[d] = ((code & np.uint32(0x80)) << np.uint32(24)) | (
                    (code & np.uint32(0x7F)) << np.uint32(20)
                )
            for d in range(dim):
                row[d] = row[d] * (_FROM_FP8 * scale[g, h, d])
            _round(raw, out[t, h])


@compiled
def values8(codes: Bytes, scale: Floats, zero: Floats, out: Halves) -> None:
    """codes [rows, D]; scale, zero [rows]; out [rows, D]; a row is a token's head."""
    count, dim = out.shape
    row = np.empty(dim, np.float32)
    bits = row.view(np.uint32)
    for r in range(count):
        for d in range(dim):
            row[d] = np.float32(codes[r, d]) * scale[r] + zero[r]
        _round(bits, out[r])


@compiled
def values_fp8(codes: Bytes, scale: Floats, out: Halves) -> None:
    """As `values8`, codes: the bits of e4m3 numbers."""
    count, dim = out.shape
    raw = np.empty(dim, np.uint32)
    row = raw.view(np.float32)
    for r in range(count):
        step = _FROM_FP8 * scale[r]
        for d in range(dim):
            code = np.uint32(codes[r, d])
            raw[d] = ((code & np.uint32(0x80)) << np.uint32(24)) | ((code & np.uint32(0x7F)) << np.uint32(20))
        for d in range(dim):
            row[d] = row[d] * step
        _round(raw, out[r])


@compiled
def values4(codes: Bytes, scale: Floats, zero: Floats, block: int, out: Halves) -> None:
    """codes [rows, D/2]; scale, zero [rows]; out [rows, D]; a row is a token's head, rotated in blocks of `block`.

    `_WIDTH` rows at a time stand side by side, so that each step of the rotation is one instruction for all of them.
    """
    count, dim = out.shape
    half = dim // 2
    packed = np.zeros((half, _WIDTH), np.uint8)
    tile, other = np.zeros((dim, _WIDTH), np.float32), np.zeros((dim, _WIDTH), np.float32)
    short = np.zeros((dim, _WIDTH), np.uint16)
    norm = np.float32(1.0) / np.sqrt(np.float32(block))
    step = np.zeros(_WIDTH, np.float32)
    for first in range(0, count, _WIDTH):
        width = min(_WIDTH, count - first)
        for w in range(width):
            step[w] = scale[first + w] * norm
            for d in range(half):
                packed[d, w] = codes[first + w, d]
        for d in range(half):
            for w in range(_WIDTH):
                tile[d, w] = np.float32(packed[d, w] & np.uint8(15))
                tile[half + d, w] = np.float32(packed[d, w] >> np.uint8(4))
        for start in range(0, dim, block):
            _rotate(tile[start : start + block], other[start : start + block])
        for d in range(dim):
            for w in range(_WIDTH):
                tile[d, w] = tile[d, w] * step[w]
        for d in range(0, dim, block):  # a constant vector rotates into its first component
            for w in range(width):
                tile[d, w] += zero[first + w] * np.float32(block) * norm
        _round(tile.reshape(-1).view(np.uint32), short.reshape(-1))
        for w in range(width):
            for d in range(dim):
                out[first + w, d] = short[d, w]


@compiled
def _rotate(tile: Any, other: Any) -> None:
    """The Hadamard rotation along the first dimension without its factor, in place; `other` is scratch space.

    Every round transforms the lowest bit of the index and moves it to the top: each round is the same loop, and the
    last one has brought all bits back to where they were.
    """
    block = len(tile)
    half = block // 2
    source, target = tile, other
    done, rounds = 1, 0
    while done < block:
        for i in range(half):
            for w in range(_WIDTH):
                target[i, w] = source[2 * i, w] + source[2 * i + 1, w]
                target[half + i, w] = source[2 * i, w] - source[2 * i + 1, w]
        source, target = target, source
        done *= 2
        rounds += 1
    if rounds % 2:
        tile[:] = other


def keys_to_bf16(q: Quantised, group: int, out: torch.Tensor) -> None:
    """`dequantise_keys(q, group, torch.bfloat16)` into `out` [L, n, H, D], contiguous, on the CPU."""
    scale = q.scale.float().numpy()
    zero = None if q.zero is None else q.zero.float().numpy()
    codes, target = q.codes.view(torch.uint8).numpy(), out.view(torch.uint16).numpy()
    for layer in range(len(target)):
        if zero is None:
            keys_fp8(codes[layer], scale[layer], group, target[layer])
        else:
            read = keys4 if q.bits == 4 else keys8
            read(codes[layer], scale[layer], zero[layer], group, target[layer])


def values_to_bf16(q: Quantised, out: torch.Tensor) -> None:
    """`dequantise_values(q, torch.bfloat16, rotate=q.bits == 4)` into `out`, as `keys_to_bf16`."""
    dim = out.shape[-1]
    scale = q.scale.float().numpy().reshape(-1)
    codes = q.codes.view(torch.uint8).numpy().reshape(len(scale), -1)
    target = out.view(torch.uint16).numpy().reshape(-1, dim)
    if q.zero is None:
        values_fp8(codes, scale, target)
    elif q.bits == 4:
        values4(codes, scale, q.zero.float().numpy().reshape(-1), hadamard_size(dim), target)
    else:
        values8(codes, scale, q.zero.float().numpy().reshape(-1), target)
