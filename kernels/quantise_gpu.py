"""`agentcache.kernels.quantise` as Triton kernels: K/V are read once and written once.

A component d below D/2 and its partner d + D/2 are worked on together: four-bit codes pack them into one byte. The
Hadamard rotation is a product with a matrix whose elements are known from their indices. Casting to fp8 needs a device
with it (Ada, Hopper); elsewhere the reference runs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from agentcache.kernels.quantise import Quantised, hadamard_size

_ROWS = 16  # values' tokens and heads one program works on; matrix instructions want 16
_INNER = 32  # components multiplied at once


@triton.jit
def _even(value):
    """To the nearest whole number, halves to even; for values from 0 on."""
    nearest = tl.floor(value + 0.5)
    tie_to_odd = (nearest - value == 0.5) & (nearest.to(tl.int32) % 2 == 1)
    return tl.where(tie_to_odd, nearest - 1.0, nearest)


@triton.jit
def _at_fp8(value):
    """Rounded to what float8_e4m3fn holds, so that the cast is exact (Triton's interpreter loses carries)."""
    bits = value.to(tl.int32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) & ~0xFFFFF).to(tl.float32, bitcast=True)
    size = tl.abs(value)
    subnormal = tl.where(value < 0.0, -1.0, 1.0) * _even(tl.where(size < 1.0, size, 0.0) * 512.0) / 512.0
    return tl.where(size < 0.015625, subnormal, normal)


@triton.jit
def _encoded(x, scale, zero, BITS: tl.constexpr):
    """Codes, still float32: fp8 codes for BITS 0, else whole numbers of BITS bits, halves to even."""
    value = tl.div_rn(x - zero, scale)
    if BITS == 0:
        return _at_fp8(tl.clamp(value, -448.0, 448.0))
    value = tl.where(value == value, value, 0.0)
    return _even(tl.clamp(value, 0.0, (1 << BITS) - 1.0))


@triton.jit
def _range(low, high, BITS: tl.constexpr):
    """float16 scale and zero, as float32, that cover [low, high]; fp8's zero is 0."""
    if BITS == 0:
        scale = tl.div_rn(tl.maximum(tl.abs(low), tl.abs(high)), 448.0)
        zero = tl.zeros_like(low)
    else:
        zero = tl.clamp(low, -65504.0, 65504.0).to(tl.float16).to(tl.float32)
        scale = tl.div_rn(high - zero, (1 << BITS) - 1.0)
    return tl.clamp(scale, 5.9604644775390625e-08, 65504.0).to(tl.float16).to(tl.float32), zero


@triton.jit
def _store_codes(codes, at, inside, low, high, half, live, BITS: tl.constexpr):
    """Two halves of encoded vectors whose first code lies at `codes + at`; `inside` is the index in a half."""
    if BITS == 4:
        packed = low.to(tl.int32) | (high.to(tl.int32) << 4)
        tl.store(codes + at + inside, packed.to(tl.uint8), mask=live)
    else:
        tl.store(codes + at + inside, low.to(codes.dtype.element_ty), mask=live)
        tl.store(codes + at + half + inside, high.to(codes.dtype.element_ty), mask=live)


@triton.jit
def _load_codes(codes, at, component, half, live, BITS: tl.constexpr):
    """Codes of some components as float32."""
    if BITS == 4:
        packed = tl.load(codes + at + component % half, mask=live, other=0).to(tl.int32)
        return tl.where(component < half, packed & 15, packed >> 4).to(tl.float32)
    return tl.load(codes + at + component, mask=live, other=0.0).to(tl.float32)


@triton.jit
def _keys_to_codes(
    x, codes, scales, zeros, num_tokens, num_groups, group, heads, dim, BITS: tl.constexpr, B: tl.constexpr
):
    """One program a layer, group of tokens, and block of channels."""
    lead = (tl.program_id(0) // num_groups).to(tl.int64)
    first = tl.program_id(0) % num_groups * group
    last = min(first + group, num_tokens)
    half = dim // 2
    channel = tl.program_id(1) * B + tl.arange(0, B)
    live = channel < heads * half
    head, inside = channel // half, channel % half
    width = half if BITS == 4 else dim
    low_min = tl.full((B,), float("inf"), tl.float32)
    low_max = tl.full((B,), float("-inf"), tl.float32)
    high_min, high_max = low_min, low_max
    for token in range(first, last):
        at = ((lead * num_tokens + token) * heads + head) * dim + inside
        low = tl.load(x + at, mask=live, other=0.0).to(tl.float32)
        high = tl.load(x + at + half, mask=live, other=0.0).to(tl.float32)
        low_min, low_max = tl.minimum(low_min, low), tl.maximum(low_max, low)
        high_min, high_max = tl.minimum(high_min, high), tl.maximum(high_max, high)
    low_scale, low_zero = _range(low_min, low_max, BITS)
    high_scale, high_zero = _range(high_min, high_max, BITS)
    at = (tl.program_id(0).to(tl.int64) * heads + head) * dim + inside
    tl.store(scales + at, low_scale.to(tl.float16), mask=live)
    tl.store(scales + at + half, high_scale.to(tl.float16), mask=live)
    tl.store(zeros + at, low_zero.to(tl.float16), mask=live)
    tl.store(zeros + at + half, high_zero.to(tl.float16), mask=live)
    for token in range(first, last):
        vector = (lead * num_tokens + token) * heads + head
        low = tl.load(x + vector * dim + inside, mask=live, other=0.0).to(tl.float32)
        high = tl.load(x + vector * dim + half + inside, mask=live, other=0.0).to(tl.float32)
        low, high = _encoded(low, low_scale, low_zero, BITS), _encoded(high, high_scale, high_zero, BITS)
        _store_codes(codes, vector * width, inside, low, high, half, live, BITS)


@triton.jit
def _codes_to_keys(
    codes, scales, zeros, out, num_tokens, num_groups, group, heads, dim, BITS: tl.constexpr, B: tl.constexpr
):
    """One program a token and block of channels."""
    token = tl.program_id(0).to(tl.int64)
    lead, row = token // num_tokens, token % num_tokens // group
    half = dim // 2
    width = half if BITS == 4 else dim
    channel = tl.program_id(1) * B + tl.arange(0, B)
    live = channel < heads * dim
    head, component = channel // dim, channel % dim
    code = _load_codes(codes, (token * heads + head) * width, component, half, live, BITS)
    at = (lead * num_groups + row) * heads * dim + channel
    value = code * tl.load(scales + at, mask=live, other=0.0).to(tl.float32)
    if BITS != 0:
        value += tl.load(zeros + at, mask=live, other=0.0).to(tl.float32)
    tl.store(out + token * heads * dim + channel, value.to(out.dtype.element_ty), mask=live)


@triton.jit
def _hadamard(row, column, SIZE: tl.constexpr):
    """Elements of the rotation's matrix: plus or minus one, by the number of ones that two indices share."""
    shared = row & column & (SIZE - 1)
    shared ^= shared >> 8
    shared ^= shared >> 4
    shared ^= shared >> 2
    shared ^= shared >> 1
    sign = 1.0 - 2.0 * (shared & 1).to(tl.float32)
    return tl.where(row // SIZE == column // SIZE, sign, 0.0)


@triton.jit
def _values_to_codes(
    x,
    codes,
    scales,
    zeros,
    rows,
    dim,
    norm,
    BITS: tl.constexpr,
    ROTATE: tl.constexpr,
    SIZE: tl.constexpr,
    BR: tl.constexpr,
    BK: tl.constexpr,
    BD: tl.constexpr,
):
    """One program for BR vectors, a token and head each."""
    row = (tl.program_id(0) * BR + tl.arange(0, BR)).to(tl.int64)[:, None]
    half = dim // 2
    width = half if BITS == 4 else dim
    inside = tl.arange(0, BD)[None, :]
    live = (row < rows) & (inside < half)
    if ROTATE:
        low = tl.zeros((BR, BD), tl.float32)
        high = tl.zeros((BR, BD), tl.float32)
        for start in range(0, dim, BK):
            k = start + tl.arange(0, BK)
            mask = (row < rows) & (k < dim)[None, :]
            part = tl.load(x + row * dim + k[None, :], mask=mask, other=0.0).to(tl.float32)
            low += tl.dot(part, _hadamard(k[:, None], inside, SIZE), input_precision="ieee")
            high += tl.dot(part, _hadamard(k[:, None], inside + half, SIZE), input_precision="ieee")
        low, high = low * norm, high * norm
    else:
        low = tl.load(x + row * dim + inside, mask=live, other=0.0).to(tl.float32)
        high = tl.load(x + row * dim + half + inside, mask=live, other=0.0).to(tl.float32)
    infinite = float("inf")
    smallest = tl.min(tl.where(live, tl.minimum(low, high), infinite), axis=1)[:, None]
    largest = tl.max(tl.where(live, tl.maximum(low, high), -infinite), axis=1)[:, None]
    scale, zero = _range(smallest, largest, BITS)
    tl.store(scales + row, scale.to(tl.float16), mask=row < rows)
    tl.store(zeros + row, zero.to(tl.float16), mask=row < rows)
    low, high = _encoded(low, scale, zero, BITS), _encoded(high, scale, zero, BITS)
    _store_codes(codes, row * width, inside, low, high, half, live, BITS)


@triton.jit
def _codes_to_values(
    codes,
    scales,
    zeros,
    out,
    rows,
    dim,
    norm,
    BITS: tl.constexpr,
    ROTATE: tl.constexpr,
    SIZE: tl.constexpr,
    BR: tl.constexpr,
    BK: tl.constexpr,
    BD: tl.constexpr,
):
    """One program for BR vectors, a token and head each."""
    row = (tl.program_id(0) * BR + tl.arange(0, BR)).to(tl.int64)[:, None]
    half = dim // 2
    width = half if BITS == 4 else dim
    component = tl.arange(0, BD)[None, :]
    live = (row < rows) & (component < dim)
    scale = tl.load(scales + row, mask=row < rows, other=0.0).to(tl.float32)
    zero = tl.zeros((BR, 1), tl.float32)
    if BITS != 0:
        zero = tl.load(zeros + row, mask=row < rows, other=0.0).to(tl.float32)
    if ROTATE:
        value = tl.zeros((BR, BD), tl.float32)
        for start in range(0, dim, BK):
            k = start + tl.arange(0, BK)
            mask = (row < rows) & (k < dim)[None, :]
            part = _load_codes(codes, row * width, k[None, :], half, mask, BITS) * scale + zero
            part = tl.where(mask, part, 0.0)
            value += tl.dot(part, _hadamard(k[:, None], component, SIZE), input_precision="ieee")
        value *= norm
    else:
        value = _load_codes(codes, row * width, component, half, live, BITS) * scale + zero
    tl.store(out + row * dim + component, value.to(out.dtype.element_ty), mask=live)


def quantise_keys(x: torch.Tensor, bits: int | str, group: int) -> Quantised:
    """As the reference."""
    *lead, n, heads, dim = x.shape
    groups = triton.cdiv(n, group)
    q = _empty(x, bits, (*lead, groups, heads, dim))
    if x.numel():
        block = min(256, triton.next_power_of_2(heads * dim // 2))
        grid = (x.numel() // (n * heads * dim) * groups, triton.cdiv(heads * dim // 2, block))
        _keys_to_codes[grid](
            x.contiguous(), q.codes, q.scale, q.zero, n, groups, group, heads, dim, BITS=_bits(bits), B=block
        )
    return _without_zero(q)


def dequantise_keys(q: Quantised, group: int, dtype: torch.dtype) -> torch.Tensor:
    """As the reference."""
    *lead, n, heads, _ = q.codes.shape
    groups, dim = q.scale.shape[-3], q.scale.shape[-1]
    out = torch.empty((*lead, n, heads, dim), dtype=dtype, device=q.codes.device)
    if out.numel():
        block = min(512, triton.next_power_of_2(heads * dim))
        _codes_to_keys[(out.numel() // (heads * dim), triton.cdiv(heads * dim, block))](
            *_pointers(q), out, n, groups, group, heads, dim, BITS=_bits(q.bits), B=block
        )
    return out


def quantise_values(x: torch.Tensor, bits: int | str, *, rotate: bool) -> Quantised:
    """As the reference, but for a code one off where rounding in another order decides."""
    dim = x.shape[-1]
    q = _empty(x, bits, (*x.shape[:-1], 1))
    rows = q.scale.numel()
    if rows:
        _values_to_codes[(triton.cdiv(rows, _ROWS),)](
            x.contiguous(), q.codes, q.scale, q.zero, rows, dim, **_sizes(dim, dim // 2, bits, rotate)
        )
    return _without_zero(q)


def dequantise_values(q: Quantised, dtype: torch.dtype, *, rotate: bool) -> torch.Tensor:
    """As the reference."""
    dim = q.codes.shape[-1] * (2 if q.bits == 4 else 1)
    out = torch.empty((*q.codes.shape[:-1], dim), dtype=dtype, device=q.codes.device)
    rows = q.scale.numel()
    if rows:
        _codes_to_values[(triton.cdiv(rows, _ROWS),)](
            *_pointers(q), out, rows, dim, **_sizes(dim, dim, q.bits, rotate)
        )
    return out


def _empty(x: torch.Tensor, bits: int | str, scale_shape: tuple[int, ...]) -> Quantised:
    """Room for the codes of `x`; `zero` is there even for fp8, which has none."""
    shape = (*x.shape[:-1], x.shape[-1] // 2 if bits == 4 else x.shape[-1])
    kind = torch.uint8 if isinstance(bits, int) else torch.float8_e4m3fn
    codes = torch.empty(shape, dtype=kind, device=x.device)
    scale = torch.empty(scale_shape, dtype=torch.float16, device=x.device)
    return Quantised(codes, scale, torch.empty_like(scale), bits)  # type: ignore[arg-type]


def _without_zero(q: Quantised) -> Quantised:
    return q if isinstance(q.bits, int) else Quantised(q.codes, q.scale, None, q.bits)


def _pointers(q: Quantised) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    zero = q.scale if q.zero is None else q.zero
    return q.codes.contiguous(), q.scale.contiguous(), zero.contiguous()


def _bits(bits: int | str) -> int:
    return bits if isinstance(bits, int) else 0


def _sizes(dim: int, across: int, bits: int | str, rotate: bool) -> dict[str, float]:
    """Compile-time sizes of the kernels for values; `across` components at once."""
    size = hadamard_size(dim)
    return {
        "norm": size**-0.5,
        "BITS": _bits(bits),
        "ROTATE": rotate,
        "SIZE": size,
        "BR": _ROWS,
        "BK": _INNER,
        "BD": max(16, triton.next_power_of_2(across)),
    }
