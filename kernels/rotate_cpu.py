"""`rotate_keys` for bfloat16 keys on the CPU: one pass over memory instead of eight (numba, no interpreter lock)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from agentcache.match.jit import compiled

Halves = npt.NDArray[np.uint16]
Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]


@compiled
def _narrow(wide: np.uint32) -> np.uint16:
    """float32 bits to bfloat16 bits: to the nearest, ties to even."""
    odd = (wide >> np.uint32(16)) & np.uint32(1)
    return np.uint16((wide + np.uint32(0x7FFF) + odd) >> np.uint32(16))


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
            for j in range(dim):
                out[i, h, j] = _narrow(turned_bits[j])


@compiled
def _rotate_added(
    source: Halves,
    cos: Floats,
    sin: Floats,
    table: Floats,
    rows: Rows,
    own_cos: Floats,
    own_sin: Floats,
    out: Halves,
) -> None:
    """As `_rotate`; row rows[i] of `table`, rotated by own_cos and own_sin [n, D/2], is added before."""
    count, heads, dim = source.shape
    half = dim // 2
    bits = np.empty(dim, np.uint32)
    value = bits.view(np.float32)
    added = np.empty(dim, np.float32)
    whole = np.empty(dim, np.float32)
    turned = np.empty(dim, np.float32)
    turned_bits = turned.view(np.uint32)
    for i in range(count):
        row = rows[i]
        for h in range(heads):
            for j in range(dim):
                bits[j] = np.uint32(source[i, h, j]) << np.uint32(16)
            for j in range(half):  # loops over few arrays each: more, and the compiler does not vectorise
                added[j] = table[row, h, j] * own_cos[i, j] - table[row, h, half + j] * own_sin[i, j]
                added[half + j] = table[row, h, half + j] * own_cos[i, j] + table[row, h, j] * own_sin[i, j]
            for j in range(dim):
                whole[j] = value[j] + added[j]
            for j in range(half):
                turned[j] = whole[j] * cos[i, j] - whole[half + j] * sin[i, j]
                turned[half + j] = whole[half + j] * cos[i, j] + whole[j] * sin[i, j]
            for j in range(dim):
                out[i, h, j] = _narrow(turned_bits[j])


@compiled
def _add(source: Halves, table: Floats, rows: Rows, out: Halves) -> None:
    """Row rows[i] of `table` is added; source, out: bfloat16 bits [n, H, D]."""
    count, heads, dim = source.shape
    bits = np.empty(dim, np.uint32)
    value = bits.view(np.float32)
    whole = np.empty(dim, np.float32)
    whole_bits = whole.view(np.uint32)
    for i in range(count):
        row = rows[i]
        for h in range(heads):
            for j in range(dim):
                bits[j] = np.uint32(source[i, h, j]) << np.uint32(16)
            for j in range(dim):
                whole[j] = value[j] + table[row, h, j]
            for j in range(dim):
                out[i, h, j] = _narrow(whole_bits[j])


def rotate_bf16(keys: Halves, cos: Floats, sin: Floats, out: Halves) -> None:
    """As `rotate_keys` with neox pairs and R = D, on bfloat16 bits; all arrays C-contiguous.

    keys, out: uint16 [n, H, D]; cos, sin: float32 [n, D/2]. Finite keys only: a NaN may become an infinity.
    """
    _rotate(keys, cos, sin, out)


def rotate_added_bf16(
    keys: Halves,
    cos: Floats,
    sin: Floats,
    table: Floats,
    rows: Rows,
    own_cos: Floats,
    own_sin: Floats,
    out: Halves,
) -> None:
    """`rotate_bf16` of keys to which their row of a table was added (`agentcache.blend.correction`), rounded once.

    table: float32 [B, H, D], as if at position 0; rows: int64 [n]
    own_cos, own_sin: float32 [n, D/2], from position 0 to where each key was rotated for
    """
    _rotate_added(keys, cos, sin, table, rows, own_cos, own_sin, out)


def add_bf16(values: Halves, table: Floats, rows: Rows, out: Halves) -> None:
    """values + table[rows], on bfloat16 bits; values, out: uint16 [n, H, D]; table: float32 [B, H, D]."""
    _add(values, table, rows, out)


def bits_of(tensor: torch.Tensor) -> Halves:
    """The bits of a bfloat16 tensor on the CPU, sharing its memory."""
    bits: Halves = tensor.view(torch.uint16).numpy()
    return bits
