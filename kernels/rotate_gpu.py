"""`rotate_keys` as a Triton kernel: one program a token and head group, one pass over memory."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def turn(
    keys,  # [H, D] of one token: pointer to its first element
    cos,  # [R/2] of that token
    sin,
    head,  # [BH, 1]
    dim,  # [1, BD]
    live,  # [BH, BD]: inside [H, D]
    head_stride,
    dim_stride,
    FIRST: tl.constexpr,
    HALF: tl.constexpr,
    NEOX: tl.constexpr,
):
    """One token's keys, rotated, float32 [BH, BD]; see `rotate_keys`."""
    inside = dim - FIRST
    rotary = (inside >= 0) & (inside < 2 * HALF)
    if NEOX:
        pair = inside % HALF
        is_first = inside < HALF
        partner = tl.where(is_first, inside + HALF, inside - HALF)
    else:
        pair = inside // 2
        is_first = inside % 2 == 0
        partner = tl.where(is_first, inside + 1, inside - 1)
    pair = tl.where(rotary, pair, 0)
    own = tl.load(keys + head * head_stride + dim * dim_stride, mask=live, other=0.0).to(tl.float32)
    other_at = keys + head * head_stride + (partner + FIRST) * dim_stride
    other = tl.load(other_at, mask=live & rotary, other=0.0).to(tl.float32)
    c = tl.load(cos + pair, mask=rotary, other=1.0)
    s = tl.load(sin + pair, mask=rotary, other=0.0)
    return own * c + tl.where(is_first, -other, other) * s


@triton.jit
def _rotate(
    keys,
    cos,
    sin,
    out,
    num_heads,
    head_dim,
    key_token,
    key_head,
    key_dim,
    out_token,
    out_head,
    out_dim,
    FIRST: tl.constexpr,
    HALF: tl.constexpr,
    NEOX: tl.constexpr,
    BH: tl.constexpr,
    BD: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BH + tl.arange(0, BH)[:, None]
    dim = tl.arange(0, BD)[None, :]
    live = (head < num_heads) & (dim < head_dim)
    turned = turn(
        keys + token * key_token,
        cos + token * HALF,
        sin + token * HALF,
        head,
        dim,
        live,
        key_head,
        key_dim,
        FIRST,
        HALF,
        NEOX,
    )
    at = out + token * out_token + head * out_head + dim * out_dim
    tl.store(at, turned.to(out.dtype.element_ty), mask=live)


def blocks(num_heads: int, head_dim: int) -> tuple[int, int]:
    """Heads and components one program works on: powers of two, at most 4096 elements, all components."""
    across = triton.next_power_of_2(head_dim)
    return min(triton.next_power_of_2(num_heads), max(1, 4096 // across)), across


def rotate(
    keys: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, out: torch.Tensor, neox: bool, first: int
) -> None:
    """As `rotate_keys`, any strides of keys and out; cos and sin are made contiguous."""
    count, heads, dim = keys.shape
    if not keys.numel():
        return
    block_heads, block_dim = blocks(heads, dim)
    _rotate[(count, triton.cdiv(heads, block_heads))](
        keys,
        cos.contiguous(),
        sin.contiguous(),
        out,
        heads,
        dim,
        *keys.stride(),
        *out.stride(),
        FIRST=first,
        HALF=cos.shape[-1],
        NEOX=neox,
        BH=block_heads,
        BD=block_dim,
    )
