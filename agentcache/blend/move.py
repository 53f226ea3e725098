"""K/V of several spans, layer by layer, with their keys moved to where the spans stand in the prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from agentcache.blend.correction import Offsets
from agentcache.blend.rope import KeyShift
from agentcache.kernels.rotate import rotate_keys

MoveLayers = Callable[
    [Sequence[torch.Tensor], torch.Tensor, torch.Tensor, Offsets | None],
    Iterator[tuple[torch.Tensor, torch.Tensor]],
]
"""(parts, cos, sin, offsets) to (keys, values) of each layer in turn, [n, H, D]; valid until the next is asked for.

parts: K/V of one span each, [2, L, n_i, H, D], on the pages' device; cos, sin: float32 [n, 1, R/2], n = sum of n_i
offsets: what is added to these n tokens first
"""

_ROTATED_AT_ONCE = 1024
"""Tokens. On the CPU, float32 copies of so many keys of one layer fit the second-level cache."""


def choose(device: torch.device, dtype: torch.dtype, head_dim: int, shift: KeyShift) -> MoveLayers:
    """The fastest way for these K/V."""
    whole = shift.neox and shift.rotary_dim == head_dim
    if device.type == "cpu" and dtype == torch.bfloat16 and whole:
        move = _bf16_on_cpu
        tiny = torch.zeros(2, 1, 1, 1, head_dim, dtype=dtype)
        cos, sin = torch.ones(1, 1, head_dim // 2), torch.zeros(1, 1, head_dim // 2)
        nothing = Offsets(
            torch.zeros(1, 2, 1, 1, head_dim), torch.zeros(1, dtype=torch.int64), cos, sin, True, 0
        )
        for offsets in (None, nothing):
            for _ in move([tiny], cos, sin, offsets):
                pass  # compiled now, not in the first request
        return move
    return lambda parts, cos, sin, offsets: _with_torch(parts, cos, sin, offsets, shift.neox, shift.first)


def _with_torch(
    parts: Sequence[torch.Tensor],
    cos: torch.Tensor,
    sin: torch.Tensor,
    offsets: Offsets | None,
    neox: bool,
    first: int,
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for layer in range(parts[0].shape[1]):
        keys, values = torch.cat([part[:, layer] for part in parts], dim=1)
        if offsets is not None:
            keys, values = offsets.added_to(torch.stack([keys, values]), layer, slice(None))
        moved = torch.empty_like(keys)
        for at in range(0, len(keys), _ROTATED_AT_ONCE):
            piece = slice(at, at + _ROTATED_AT_ONCE)
            rotate_keys(keys[piece], cos[piece], sin[piece], neox=neox, first=first, out=moved[piece])
        yield moved, values


def _bf16_on_cpu(
    parts: Sequence[torch.Tensor], cos: torch.Tensor, sin: torch.Tensor, offsets: Offsets | None
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    # Not at the top: vLLM's CPU worker does not start where numba is loaded before it (docs/engine.md).
    from agentcache.kernels.rotate_cpu import add_bf16, bits_of, rotate_added_bf16, rotate_bf16

    count = sum(part.shape[2] for part in parts)
    keys, values = torch.empty((2, count, *parts[0].shape[3:]), dtype=torch.bfloat16)
    key_bits, value_bits = bits_of(keys), bits_of(values)
    cosines, sines = cos[:, 0].numpy(), sin[:, 0].numpy()
    sources = [bits_of(part) for part in parts]
    if offsets is not None:
        rows, table = offsets.rows.numpy(), offsets.table.numpy()
        own_cosines, own_sines = offsets.cos[:, 0].numpy(), offsets.sin[:, 0].numpy()
    for layer in range(parts[0].shape[1]):
        at = 0
        for source in sources:
            piece = slice(at, at + source.shape[2])
            if offsets is None:
                rotate_bf16(source[0, layer], cosines[piece], sines[piece], key_bits[piece])
                np.copyto(value_bits[piece], source[1, layer])
            else:
                rotate_added_bf16(
                    source[0, layer],
                    cosines[piece],
                    sines[piece],
                    table[layer, 0],
                    rows[piece],
                    own_cosines[piece],
                    own_sines[piece],
                    key_bits[piece],
                )
                add_bf16(source[1, layer], table[layer, 1], rows[piece], value_bits[piece])
            at = piece.stop
        yield keys, values
