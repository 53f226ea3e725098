"""How far keys lie from what they should be: CacheBlend's measure of which reused tokens to recompute."""

from __future__ import annotations

import torch

from agentcache.kernels import device


def key_deviation(fresh: torch.Tensor, reused: torch.Tensor) -> torch.Tensor:
    """Squared distance of each token's key from the fresh one, summed over heads and components, in float32.

    fresh, reused: [n, H, D] of one layer, any float dtype
    Returns float32 [n]. (CacheBlend, section 4.3, ranks tokens by it at layer 1.) On CUDA a Triton kernel
    (`deviation_gpu`).
    """
    if device.on_gpu(fresh):
        from agentcache.kernels.deviation_gpu import deviation

        return deviation(fresh, reused)
    return (fresh.float() - reused.float()).square().sum(dim=(1, 2))
