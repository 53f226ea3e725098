"""`key_deviation` as a Triton kernel: one program a token."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _deviation(fresh, reused, out, size, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, size, BLOCK):
        at = start + tl.arange(0, BLOCK)
        live = at < size
        a = tl.load(fresh + token * size + at, mask=live, other=0.0).to(tl.float32)
        b = tl.load(reused + token * size + at, mask=live, other=0.0).to(tl.float32)
        total += (a - b) * (a - b)
    tl.store(out + token, tl.sum(total, axis=0))


def deviation(fresh: torch.Tensor, reused: torch.Tensor) -> torch.Tensor:
    """As `key_deviation`."""
    count = len(fresh)
    size = fresh[0].numel() if count else 0
    out = torch.zeros(count, dtype=torch.float32, device=fresh.device)
    if size:
        block = min(1024, triton.next_power_of_2(size))
        _deviation[(count,)](fresh.contiguous(), reused.contiguous(), out, size, BLOCK=block)
    return out
