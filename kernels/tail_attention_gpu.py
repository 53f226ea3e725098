"""`tail_attention` as two Triton kernels: the weights' denominators first, then every key's sum of weights.

Nothing of the size queries times keys is ever stored. A row is one query and one of the heads that share a key head.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_ROWS, _KEYS = 32, 64  # of one block; products of blocks are matrix instructions, which want 16 at least
_PIECES = 16  # the denominators of many keys are summed in so many pieces beside each other


@triton.jit
def _products(
    queries,
    keys,
    positions,
    num_rows,
    num_keys,
    dim,
    query_token,
    query_head,
    query_dim,
    key_token,
    key_head,
    key_dim,
    kv_head,
    row,
    key,
    scale,
    GROUP: tl.constexpr,
    BD: tl.constexpr,
):
    """Scaled products of a block of rows with a block of keys, [BM, BN]; minus infinity where not to be seen."""
    component = tl.arange(0, BD)
    real = row < num_rows
    query = row // GROUP
    head = kv_head * GROUP + row % GROUP
    q_at = queries + query[:, None] * query_token + head[:, None] * query_head
    q = tl.load(
        q_at + component[None, :] * query_dim, mask=real[:, None] & (component < dim)[None, :], other=0.0
    )
    k_at = keys + key.to(tl.int64)[None, :] * key_token + kv_head * key_head
    k = tl.load(
        k_at + component[:, None] * key_dim,
        mask=(key < num_keys)[None, :] & (component < dim)[:, None],
        other=0.0,
    )
    position = tl.load(positions + query, mask=real, other=-1)
    seen = (key[None, :] <= position[:, None]) & (key < num_keys)[None, :]
    return tl.where(seen, tl.dot(q, k, input_precision="ieee") * scale, float("-inf"))


@triton.jit
def _denominators(
    queries,
    keys,
    positions,
    out,  # float32 [pieces, Hkv, rows]: log of the sum of exponentials
    num_rows,
    num_keys,
    dim,
    query_token,
    query_head,
    query_dim,
    key_token,
    key_head,
    key_dim,
    piece_size,
    scale,
    GROUP: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BD: tl.constexpr,
):
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    kv_head = tl.program_id(1)
    first = tl.program_id(2) * piece_size
    largest = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    for start in range(first, min(first + piece_size, num_keys), BN):
        key = start + tl.arange(0, BN)
        products = _products(
            queries,
            keys,
            positions,
            num_rows,
            num_keys,
            dim,
            query_token,
            query_head,
            query_dim,
            key_token,
            key_head,
            key_dim,
            kv_head,
            row,
            key,
            scale,
            GROUP,
            BD,
        )
        new = tl.maximum(largest, tl.max(products, axis=1))
        safe = tl.where(new == float("-inf"), 0.0, new)
        total = total * tl.exp(largest - safe) + tl.sum(tl.exp(products - safe[:, None]), axis=1)
        largest = new
    empty = total == 0.0
    log = tl.where(empty, float("-inf"), largest + tl.log(tl.where(empty, 1.0, total)))
    at = (tl.program_id(2) * tl.num_programs(1) + kv_head) * num_rows + row
    tl.store(out + at, log, mask=row < num_rows)


@triton.jit
def _weights(
    queries,
    keys,
    positions,
    denominators,  # float32 [Hkv, rows]
    out,  # float32 [Hkv, num_keys]
    num_rows,
    num_keys,
    dim,
    query_token,
    query_head,
    query_dim,
    key_token,
    key_head,
    key_dim,
    scale,
    GROUP: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BD: tl.constexpr,
):
    key = tl.program_id(0) * BN + tl.arange(0, BN)
    kv_head = tl.program_id(1)
    total = tl.zeros((BN,), tl.float32)
    for start in range(0, num_rows, BM):
        row = start + tl.arange(0, BM)
        products = _products(
            queries,
            keys,
            positions,
            num_rows,
            num_keys,
            dim,
            query_token,
            query_head,
            query_dim,
            key_token,
            key_head,
            key_dim,
            kv_head,
            row,
            key,
            scale,
            GROUP,
            BD,
        )
        log = tl.load(denominators + kv_head * num_rows + row, mask=row < num_rows, other=0.0)
        total += tl.sum(tl.exp(products - log[:, None]), axis=0)
    tl.store(out + kv_head.to(tl.int64) * num_keys + key, total, mask=key < num_keys)


def attention(
    queries: torch.Tensor, keys: torch.Tensor, query_positions: torch.Tensor, scale: float
) -> torch.Tensor:
    """As `tail_attention`, any strides."""
    if queries.dtype != keys.dtype or not keys.is_cuda:  # Triton's interpreter multiplies no bfloat16
        queries, keys = queries.float(), keys.float()
    count, heads, dim = queries.shape
    num_keys, kv_heads, _ = keys.shape
    if not count:
        return torch.zeros(num_keys, dtype=torch.float32, device=keys.device)
    group = heads // kv_heads
    rows = count * group
    positions = query_positions.to(keys.device).contiguous()
    piece = triton.cdiv(triton.cdiv(num_keys, _PIECES), _KEYS) * _KEYS
    pieces = triton.cdiv(num_keys, piece)
    arguments = (rows, num_keys, dim, *queries.stride(), *keys.stride())
    sizes = {"GROUP": group, "BM": _ROWS, "BN": _KEYS, "BD": max(16, triton.next_power_of_2(dim))}
    partial = torch.empty((pieces, kv_heads, rows), dtype=torch.float32, device=keys.device)
    _denominators[(triton.cdiv(rows, _ROWS), kv_heads, pieces)](
        queries, keys, positions, partial, *arguments, piece, scale, **sizes
    )
    out = torch.empty((kv_heads, num_keys), dtype=torch.float32, device=keys.device)
    _weights[(triton.cdiv(num_keys, _KEYS), kv_heads)](
        queries, keys, positions, partial.logsumexp(0), out, *arguments, scale, **sizes
    )
    return out.sum(0)
