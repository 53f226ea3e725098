"""`gather_tokens` on the CPU: one pass, without an index for every element (numba, no interpreter lock)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from agentcache.match.jit import compiled

_BITS = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32, 8: torch.uint64}


@compiled
def _gather(
    flat: npt.NDArray[Any], within: npt.NDArray[np.int64], slots: npt.NDArray[np.int64], out: Any
) -> None:
    """flat: [num_pages, elements]; within: [parts, page_size, E]; out: [parts, n, E]"""
    parts, size, count = within.shape
    for part in range(parts):
        for i in range(len(slots)):
            page, offset = slots[i] // size, slots[i] % size
            for j in range(count):
                out[part, i, j] = flat[page, within[part, offset, j]]


def gather(flat: torch.Tensor, within: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """flat: [num_pages, elements] of one layer, any distance between pages; within: int64 [parts, page_size, H, D]

    Returns [parts, n, H, D] in the pages' dtype.
    """
    parts, size, heads, dim = within.shape
    out = torch.empty((parts, len(slots), heads, dim), dtype=flat.dtype)
    bits = _BITS[flat.dtype.itemsize]
    _gather(
        flat.view(bits).numpy(),
        within.reshape(parts, size, heads * dim).numpy(),
        slots.numpy(),
        out.view(parts, len(slots), heads * dim).view(bits).numpy(),
    )
    return out
