"""Reading K/V out of pages."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch

from agentcache.kernels import device
from agentcache.kernels.pages import PageLayout


def gather_tokens(pages: torch.Tensor, layout: PageLayout, slots: torch.Tensor) -> torch.Tensor:
    """K and V of some tokens of one layer.

    pages: [num_pages, ...], the layer's cache, any strides; slots: int64 [n], page * page_size + offset
    Returns [parts, n, H, D] in the pages' dtype, a copy. On CUDA a Triton kernel (`gather_gpu`), else `gather_cpu`.
    """
    if device.on_gpu(pages):
        from agentcache.kernels.gather_gpu import gather

        return gather(pages, layout, slots)
    # Not at the top: vLLM's CPU worker does not start where numba is loaded before it (docs/engine.md).
    from agentcache.kernels import gather_cpu

    return gather_cpu.gather(layout.flat(pages), layout.within, slots)


def gather_runs(
    pages: Sequence[torch.Tensor],
    layout: PageLayout,
    slots: torch.Tensor,
    lengths: Sequence[int],
    out: torch.Tensor,
) -> list[torch.Tensor]:
    """Several runs of tokens of all layers.

    pages: each layer's cache; slots: int64, those of all runs, one behind the other; lengths: of the runs, in tokens
    out: 1-D in the pages' dtype, on the CPU, one element for each that is read at least: what is returned lies there
    Returns [parts, L, n, H, D] for each run.
    """
    parts, _, heads, dim = layout.within.shape
    starts = [0, *accumulate(lengths)]
    token = parts * len(pages) * heads * dim
    runs = [
        out[begin * token : end * token].view(parts, len(pages), end - begin, heads, dim)
        for begin, end in pairwise(starts)
    ]
    if not device.on_gpu(pages[0]):
        from agentcache.kernels import gather_cpu  # see above

        for layer, cache in enumerate(pages):
            gather_cpu.gather_runs(layout.flat(cache), layout.within, slots, starts, out, layer, len(pages))
        return runs
    whole = torch.stack([gather_tokens(cache, layout, slots) for cache in pages], dim=1).cpu()
    for run, begin in zip(runs, starts, strict=False):
        run.copy_(whole[:, :, begin : begin + run.shape[2]])
    return runs


def gather_by_index(pages: torch.Tensor, layout: PageLayout, slots: torch.Tensor) -> torch.Tensor:
    """As `gather_tokens`, with an index for every element: the reference."""
    if not len(slots):
        return pages.new_empty((layout.within.shape[0], 0, *layout.within.shape[2:]))
    size = layout.page_size
    flat = layout.flat(pages)
    first, last = int(slots.min()) // size, int(slots.max()) // size
    if last - first < 2 * (len(slots) // size + 2):  # close together: index once into a narrow window
        flat, page_of = flat[first : last + 1], slots // size - first
    else:
        page_of = slots // size
    return flat[page_of[None, :, None, None], layout.within[:, slots % size]]
