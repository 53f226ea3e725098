"""How much a prompt's last tokens attend to every token before them."""

from __future__ import annotations

import torch

from agentcache.kernels import device


def tail_attention(
    queries: torch.Tensor, keys: torch.Tensor, query_positions: torch.Tensor, scale: float
) -> torch.Tensor:
    """Causal attention weights of some queries over all keys, summed over queries and heads.

    queries: [w, Hq, D] of one layer, rotated, any float dtype; keys: [n, Hkv, D], Hq a multiple of Hkv, the key at
    index i stands at position i; query_positions: int64 [w], below n; scale: what products are multiplied by
    Returns float32 [n]; its sum is w * Hq. On CUDA two Triton kernels (`tail_attention_gpu`).
    """
    if device.on_gpu(keys):
        from agentcache.kernels.tail_attention_gpu import attention

        return attention(queries, keys, query_positions, scale)
    count, heads, dim = queries.shape
    kv_heads = keys.shape[1]
    grouped = queries.float().view(count, kv_heads, heads // kv_heads, dim)
    products = torch.einsum("whgd,nhd->hgwn", grouped, keys.float()) * scale
    where = torch.arange(len(keys), device=keys.device)
    unseen = where[None, :] > query_positions.to(keys.device)[:, None]
    weights = products.masked_fill(unseen, float("-inf")).softmax(dim=-1)
    return weights.sum(dim=(0, 1, 2))
