"""`gather_tokens` as a Triton kernel: one program a token and head group."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from agentcache.kernels.pages import PageLayout
from agentcache.kernels.rotate_gpu import blocks


@triton.jit
def _gather(
    pages,
    page_stride,
    within,
    slots,
    out,
    count,
    num_heads,
    head_dim,
    PAGE_SIZE: tl.constexpr,
    PARTS: tl.constexpr,
    BH: tl.constexpr,
    BD: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BH + tl.arange(0, BH)[:, None]
    dim = tl.arange(0, BD)[None, :]
    live = (head < num_heads) & (dim < head_dim)
    slot = tl.load(slots + token)
    page = pages + slot // PAGE_SIZE * page_stride
    inside = head * head_dim + dim
    size = num_heads * head_dim
    for part in tl.static_range(PARTS):
        at = tl.load(within + (part * PAGE_SIZE + slot % PAGE_SIZE) * size + inside, mask=live, other=0)
        tl.store(out + (part * count + token) * size + inside, tl.load(page + at, mask=live), mask=live)


def gather(pages: torch.Tensor, layout: PageLayout, slots: torch.Tensor) -> torch.Tensor:
    """As `gather_tokens`."""
    parts, size, heads, dim = layout.within.shape
    out = torch.empty((parts, len(slots), heads, dim), dtype=pages.dtype, device=pages.device)
    if out.numel():
        block_heads, block_dim = blocks(heads, dim)
        _gather[(len(slots), triton.cdiv(heads, block_heads))](
            pages,
            layout.stride,
            layout.within,
            slots.contiguous(),
            out,
            len(slots),
            heads,
            dim,
            PAGE_SIZE=size,
            PARTS=parts,
            BH=block_heads,
            BD=block_dim,
        )
    return out
