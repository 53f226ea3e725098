"""`rotate_keys` for bfloat16 keys on the CPU: one pass over memory instead of eight (numba, no interpreter lock)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from agentcache.match.jit import compiled

Halves = npt.NDArray[np.uint16]
Floats = npt.NDArray[np.float32]


@compiled
def _rotate(source: Halves, cos: Floats, sin: Floats, out: Halves) -> None:
    """source, out: bfloat16 bits [n, H, D]; cos, sin: [n, D/2]; component i is paired with i + D/2."""
    count, heads, dim = source.shape
    half = dim // 2
    bits = np.empty(dim, np.uint32)
    value = bits.view(np.float32)
    turned = np.empty(dim, np.float32)
    turned_bits = turned.view(np.uint32)
    for i in range(count):
        for h in range(heads):
            for j in range(dim):
                bits[j] = np.uint32(source[i, h, j]) << np.uint32(16)
            for j in range(half):
                turned[j] = value[j] * cos[i, j] - value[half + j] * sin[i, j]
                turned[half + j] = value[half + j] * cos[i, j] + value[j] * sin[i, j]
            for j in range(dim):  # to the nearest, ties to even
                wide = turned_bits[j]
                odd = (wide >> np.uint32(16)) & np.uint32(1)
                out[i, h, j] = np.uint16((wide + np.uint32(0x7FFF) + odd) >> np.uint32(16))


def rotate_bf16(keys: Halves, cos: Floats, sin: Floats, out: Halves) -> None:
    """As `rotate_keys` with neox pairs and R = D, on bfloat16 bits; all arrays C-contiguous.

    keys, out: uint16 [n, H, D]; cos, sin: float32 [n, D/2]. Finite keys only: a NaN may become an infinity.
    """
    _rotate(keys, cos, sin, out)


def bits_of(tensor: torch.Tensor) -> Halves:
    """The bits of a bfloat16 tensor on the CPU, sharing its memory."""
    bits: Halves = tensor.view(torch.uint16).numpy()
    return bits
