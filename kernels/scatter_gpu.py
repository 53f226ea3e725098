"""`rotate_scatter` as a Triton kernel: reads each key and value once and writes it once, where it belongs."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from agentcache.kernels.pages import PageLayout
from agentcache.kernels.rotate_gpu import blocks, turn


@triton.jit
def _scatter(
    keys,
    values,
    cos,
    sin,
    pages,
    page_stride,
    within,
    slots,
    num_heads,
    head_dim,
    key_token,
    key_head,
    key_dim,
    value_token,
    value_head,
    value_dim,
    FIRST: tl.constexpr,
    HALF: tl.constexpr,
    NEOX: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    HAS_VALUES: tl.constexpr,
    BH: tl.constexpr,
    BD: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BH + tl.arange(0, BH)[:, None]
    dim = tl.arange(0, BD)[None, :]
    live = (head < num_heads) & (dim < head_dim)
    slot = tl.load(slots + token)
    page = pages + slot // PAGE_SIZE * page_stride
    size = num_heads * head_dim
    inside = slot % PAGE_SIZE * size + head * head_dim + dim
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
    at = tl.load(within + inside, mask=live, other=0)
    tl.store(page + at, turned.to(pages.dtype.element_ty), mask=live)
    if HAS_VALUES:
        source = values + token * value_token + head * value_head + dim * value_dim
        at = tl.load(within + PAGE_SIZE * size + inside, mask=live, other=0)
        tl.store(page + at, tl.load(source, mask=live), mask=live)


def scatter(
    keys: torch.Tensor,
    values: torch.Tensor | None,
    cos: torch.Tensor,
    sin: torch.Tensor,
    pages: torch.Tensor,
    layout: PageLayout,
    slots: torch.Tensor,
    neox: bool,
    first: int,
) -> None:
    """As `rotate_scatter`; cos and sin are made contiguous."""
    count, heads, dim = keys.shape
    if not keys.numel():
        return
    block_heads, block_dim = blocks(heads, dim)
    source = keys if values is None else values
    _scatter[(count, triton.cdiv(heads, block_heads))](
        keys,
        source,
        cos.contiguous(),
        sin.contiguous(),
        pages,
        layout.stride,
        layout.within,
        slots.contiguous(),
        heads,
        dim,
        *keys.stride(),
        *source.stride(),
        FIRST=first,
        HALF=cos.shape[-1],
        NEOX=neox,
        PAGE_SIZE=layout.page_size,
        HAS_VALUES=values is not None,
        BH=block_heads,
        BD=block_dim,
    )
