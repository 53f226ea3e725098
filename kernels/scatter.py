"""Rotating keys and writing K/V into pages, in one pass where the device allows it."""

from __future__ import annotations

import torch

from agentcache.kernels import device
from agentcache.kernels.pages import PageLayout
from agentcache.kernels.rotate import rotate_keys


def rotate_scatter(
    keys: torch.Tensor,
    values: torch.Tensor | None,
    cos: torch.Tensor,
    sin: torch.Tensor,
    pages: torch.Tensor,
    layout: PageLayout,
    slots: torch.Tensor,
    *,
    neox: bool,
    first: int = 0,
) -> None:
    """Write tokens of one layer into its pages, the keys rotated as by `rotate_keys`.

    keys, values: [n, H, D], any strides, in the pages' dtype; values None where pages hold one part (MLA's latent)
    pages: [num_pages, ...], the layer's cache, any strides; slots: int64 [n], page * page_size + offset, no repeats
    On CUDA a Triton kernel (`scatter_gpu`).
    """
    if device.on_gpu(pages):
        from agentcache.kernels.scatter_gpu import scatter

        scatter(keys, values, cos, sin, pages, layout, slots, neox, first)
        return
    moved = rotate_keys(keys, cos, sin, neox=neox, first=first)
    flat = layout.flat(pages)
    page_of, offset = slots // layout.page_size, slots % layout.page_size
    for part, source in enumerate((moved,) if values is None else (moved, values)):
        flat[page_of[:, None, None], layout.within[part, offset]] = source
