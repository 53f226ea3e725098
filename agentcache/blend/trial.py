"""Whether keys really move as the model's modules say: tried once, on the engine itself, before any request.

A rotation is believed only after this: sixteen tokens are computed at the start of a prompt, then the same tokens as
if the prompt began at a distant position. In the first place, too, nothing stands to their left, and attention knows
distances alone, so the second keys are the first ones moved. Layers without positions, norms behind the rotation and
anything else that no class name tells are found out here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from agentcache.blend.forward import PagedForward
from agentcache.blend.pages import PagedKV
from agentcache.blend.rope import KeyShift, UnsupportedPositions, possible_shifts
from agentcache.entry import Tokens
from agentcache.kernels.rotate import rotate_keys

TRIED_TOKENS = 16
TOLERANCE = {torch.float32: 1e-2}
LOW_PRECISION_TOLERANCE = 0.15
"""Largest mean error of a layer's rotary components relative to their size. A wrong rotation is at 1 or above in
every component that turns; 16-bit rounding, layer by layer, stays below a tenth."""


def find_shift(
    runner: Any, attention: Mapping[str, torch.nn.Module], forward: PagedForward, paged: PagedKV
) -> KeyShift:
    """How this engine's keys move. Raises UnsupportedPositions.

    runner: vLLM's model runner; attention: layer name to attention module
    """
    config = runner.vllm_config.model_config
    candidates = possible_shifts(
        runner.get_model(), attention, paged.head_dim, config.dtype, config.max_model_len
    )
    return tried_shift(candidates, forward, paged, config.get_vocab_size())


def tried_shift(
    candidates: Sequence[KeyShift], forward: PagedForward, paged: PagedKV, vocabulary: int
) -> KeyShift:
    """The first of `candidates` that moves this engine's keys right. Raises UnsupportedPositions if none does.

    Borrows the last pages.
    """
    used = -(-TRIED_TOKENS // paged.page_size)
    pages = range(paged.num_pages - used, paged.num_pages)
    tokens = np.random.default_rng(0).integers(0, vocabulary, TRIED_TOKENS, dtype=np.int32)
    distance = (candidates[0].max_positions - TRIED_TOKENS) * 2 // 3
    with paged.borrowed(pages):
        here, there = (computed_kv(forward, paged, tokens, pages, at)[0] for at in (0, distance))
    errors = [moved_error(shift, here, there, distance) for shift in candidates]
    best = min(range(len(errors)), key=errors.__getitem__)
    if not errors[best] <= TOLERANCE.get(paged.dtype, LOW_PRECISION_TOLERANCE):  # a NaN is no success
        raise UnsupportedPositions("unknown position scheme: keys do not move as the rotary embedding says")
    return candidates[best]


@torch.inference_mode()
def computed_kv(
    forward: PagedForward, paged: PagedKV, tokens: Tokens, pages: Sequence[int], distance: int
) -> torch.Tensor:
    """K and V of all layers of `tokens` as the first of a prompt whose positions begin at `distance`.

    [parts, L, n, H, D], float32, on the CPU. Overwrites `pages`.
    """
    positions = np.arange(len(tokens), dtype=np.int64)
    forward.run(positions, tokens, pages, distance=distance, eager=True)
    return paged.read(paged.slots(pages, torch.from_numpy(positions))).float()


def moved_error(shift: KeyShift, here: torch.Tensor, there: torch.Tensor, distance: int) -> float:
    """How far `here`, moved by `distance`, lies from `there`; both [L, n, H, D]. 0 is right, about 1 is chance.

    Of each component the root mean square error over tokens and heads, relative to that of the keys; the mean over
    rotary components, or over the others; the largest of all layers. So nothing is hidden by components that are
    large and hardly turn, which some models have, or by many that are not rotary, as in MLA's latent.
    """
    old = torch.arange(here.shape[1])
    cos, sin = (side.cpu() for side in shift.cos_sin(old, old + distance))
    rotary = torch.zeros(here.shape[-1], dtype=torch.bool)
    rotary[shift.first : shift.first + shift.rotary_dim] = True
    worst = 0.0
    for before, after in zip(here, there, strict=True):
        error = rotate_keys(before, cos, sin, neox=shift.neox, first=shift.first) - after
        size = after.square().mean(dim=(0, 1)).sqrt()
        relative = error.square().mean(dim=(0, 1)).sqrt() / size.clamp(min=1e-6 * size.max().item() + 1e-30)
        kinds = (relative[rotary], relative[~rotary])
        worst = max(worst, *(kind.mean().item() for kind in kinds if len(kind)))
    return worst
