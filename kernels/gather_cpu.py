"""`gather_tokens` on the CPU: one pass, without an index for every element (numba, no interpreter lock)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from agentcache.match.jit import compiled

_BITS = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32, 8: torch.uint64}


@compiled
def _gather(
    flat: npt.NDArray[Any],
    stride: int,
    within: npt.NDArray[np.int64],
    slots: npt.NDArray[np.int64],
    starts: npt.NDArray[np.int64],
    out: npt.NDArray[Any],
    layer: int,
    num_layers: int,
) -> None:
    """flat: a layer's elements from the first page's first to the last page's last; within: [parts, page_size, E];
    out: run after run, each [parts, num_layers, tokens, E]"""
    parts, size, count = within.shape
    for run in range(len(starts) - 1):
        first, tokens = starts[run], starts[run + 1] - starts[run]
        begin = first * parts * num_layers * count
        for part in range(parts):
            for i in range(tokens):
                slot = slots[first + i]
                page = np.uint64(slot // size * stride)
                row = within[part, slot % size]
                to = np.uint64(begin + ((part * num_layers + layer) * tokens + i) * count)
                for j in range(count):  # unsigned: a signed index would be looked at for being negative
                    out[to + np.uint64(j)] = flat[page + np.uint64(row[j])]


def gather_runs(
    flat: torch.Tensor,
    within: torch.Tensor,
    slots: torch.Tensor,
    starts: Sequence[int],
    out: torch.Tensor,
    layer: int,
    num_layers: int,
) -> None:
    """Several runs of tokens of one layer, each to its place in a tensor of its own.

    flat: [num_pages, elements] of one layer, any distance between pages; within: int64 [parts, page_size, H, D]
    slots: int64, those of all runs; starts: where each run begins in them, and where the last ends
    out: 1-D, contiguous, the runs' tensors one behind the other, each [parts, num_layers, n, H, D]
    """
    parts, size, heads, dim = within.shape
    bits = _BITS[flat.dtype.itemsize]
    extent = (flat.shape[0] - 1) * flat.stride(0) + flat.shape[1]
    _gather(
        flat.as_strided((extent,), (1,)).view(bits).numpy(),
        flat.stride(0),
        within.reshape(parts, size, heads * dim).numpy(),
        slots.numpy(),
        np.asarray(starts, np.int64),
        out.view(bits).numpy(),
        layer,
        num_layers,
    )


def gather(flat: torch.Tensor, within: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """One run of one layer; arguments as `gather_runs`. Returns [parts, n, H, D] in the pages' dtype."""
    parts, _, heads, dim = within.shape
    out = torch.empty((parts, len(slots), heads, dim), dtype=flat.dtype)
    gather_runs(flat, within, slots, [0, len(slots)], out.view(-1), 0, 1)
    return out
