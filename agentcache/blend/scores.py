"""Which reused tokens matter most: scores from the first layers, for the strategies that spend a budget on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from vllm.distributed import tensor_model_parallel_all_reduce

from agentcache.blend.forward import NoLayers, PagedForward
from agentcache.blend.pages import PagedKV
from agentcache.entry import Tokens
from agentcache.kernels.deviation import key_deviation
from agentcache.kernels.tail_attention import tail_attention
from agentcache.plan.types import Plan, Scores

DEVIATION_LAYER = 1
"""Layer 0's K/V depend on token and position alone; layer 1 is the first where a wrong context shows (CacheBlend)."""
QUERY_TOKENS = 48
"""Of the prompt's end: whose attention counts."""
_LONGEST_TAIL = 512
"""Tokens. Of a longer tail the first so many are run, and their last ones ask."""


def deviation(
    forward: PagedForward, paged: PagedKV, plan: Plan, tokens: Tokens, pages: Sequence[int]
) -> Scores:
    """CacheBlend's probe: how far each key of layer 1 lies from what it is in this prompt's context.

    The pages hold the reused, moved K/V. Layers 0 and 1 of all positions of the plan are computed, and stay.
    """
    positions = np.arange(plan.start, plan.stop, dtype=np.int64)
    slots = paged.slots(pages, torch.from_numpy(positions))
    reused = paged.read_layer(DEVIATION_LAYER, slots)[0]
    forward.run(positions, tokens, pages, first_layers=DEVIATION_LAYER + 1)
    fresh = paged.read_layer(DEVIATION_LAYER, slots)[0]
    return _agreed(key_deviation(fresh, reused))


def tail_scores(
    forward: PagedForward, paged: PagedKV, plan: Plan, tokens: Tokens, pages: Sequence[int]
) -> Scores:
    """How much the prompt's last tokens attend to each position, summed over three layers.

    The tail and the positions of `plan.recompute` are run through two thirds of the layers; the three are those at one
    third, half and two thirds of the depth (DESIGN 1.7 measured them). The final pass computes them again.
    """
    if paged.parts == 1:
        raise NoLayers("MLA keeps no keys that queries could be held against")
    end = min(len(tokens), plan.stop + _LONGEST_TAIL, len(pages) * paged.page_size)
    layers = sorted({paged.num_layers // 3, paged.num_layers // 2, 2 * paged.num_layers // 3})
    behind = np.arange(plan.stop, end, dtype=np.int64)
    asking = np.arange(max(plan.start, end - QUERY_TOKENS), end)
    computed = np.union1d(np.concatenate([plan.recompute, behind]), asking)
    with _queries(paged, layers) as seen:
        forward.run(computed, tokens, pages, first_layers=layers[-1] + 1)
    slots = paged.slots(pages, torch.arange(end))
    total = torch.zeros(end, dtype=torch.float32, device=paged.device)
    for layer in layers:
        queries = torch.cat(seen[layer])[-len(asking) :]
        keys = paged.read_layer(layer, slots)[0]
        total += tail_attention(queries, keys, torch.from_numpy(asking), paged.scale(layer))
    return _agreed(total)[plan.start : plan.stop]


@contextmanager
def _queries(paged: PagedKV, layers: Sequence[int]) -> Iterator[dict[int, list[torch.Tensor]]]:
    """What the attention layers are asked while the context lasts: layer to queries, [n, Hq, D] a forward."""
    seen: dict[int, list[torch.Tensor]] = {layer: [] for layer in layers}

    def keep(layer: int) -> Any:
        def hook(_: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            query: torch.Tensor = args[0] if args else kwargs["query"]
            seen[layer].append(query.detach().view(len(query), -1, paged.head_dim).clone())

        return hook

    handles = [
        paged.attention(layer).register_forward_pre_hook(keep(layer), with_kwargs=True) for layer in layers
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _agreed(scores: torch.Tensor) -> Scores:
    """The sum over tensor-parallel ranks: every rank must choose the same positions."""
    summed: torch.Tensor = tensor_model_parallel_all_reduce(scores.float())
    result: Scores = summed.cpu().numpy()
    return result
