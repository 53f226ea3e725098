"""Filling a request's pages according to a plan: load entries, move their keys, write them, recompute the rest."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from vllm.forward_context import set_forward_context

from agentcache.blend.move import choose
from agentcache.blend.pages import PagedKV
from agentcache.blend.rope import KeyShift
from agentcache.blend.virtual import VirtualBatch
from agentcache.entry import Tokens
from agentcache.plan import runs, split
from agentcache.plan.types import Plan, Positions, Span

ReadEntry = Callable[[str], torch.Tensor]
"""Entry id to its K/V, [2, L, n, H, D] on the CPU. Raises one of the `unreadable` errors given to the executor."""


@dataclass(slots=True)
class BlendResult:
    """What one plan took. lost: entry id to why it could not be read; holes: its tokens, computed instead."""

    lost: dict[str, str] = field(default_factory=dict)
    holes: int = 0
    load_s: float = 0.0
    compute_s: float = 0.0


class BlendExecutor:
    """Runs plans on one worker, with the model runner's own layers.

    runner: vLLM's model runner (V1 or V2); read: the entry store; unreadable: exceptions that mean a lost entry
    max_tokens: longest piece of recomputed tokens in one forward (vLLM's own batch limit)
    """

    def __init__(
        self,
        runner: Any,
        paged: PagedKV,
        shift: KeyShift,
        read: ReadEntry,
        unreadable: tuple[type[Exception], ...],
        max_tokens: int,
    ) -> None:
        self._runner = runner
        self._paged = paged
        self._shift = shift
        self._read = read
        self._unreadable = unreadable
        self._max_tokens = max_tokens
        self._batch = VirtualBatch(runner)
        self._move = choose(paged.device, paged.dtype, paged.head_dim, shift.rotary_dim, shift.neox)

    @torch.inference_mode()
    def execute(self, plan: Plan, tokens: Tokens, pages: Sequence[int]) -> BlendResult:
        """Fill positions [plan.start, plan.stop) of the request that owns `pages`.

        Positions before plan.start must hold valid K/V; nothing outside the interval is written.
        """
        result = BlendResult()
        began = time.perf_counter()
        found: list[tuple[Span, torch.Tensor]] = []
        lost: list[Span] = []
        for span in plan.spans:
            try:
                found.append((span, self._read(span.entry)))
            except self._unreadable as error:
                result.lost[span.entry] = type(error).__name__
                lost.append(span)
        if found:
            self._place(found, pages)
        loaded = time.perf_counter()
        self._recompute(with_holes(plan.recompute, lost), tokens, pages)
        result.holes = sum(span.length for span in lost)
        result.load_s, result.compute_s = loaded - began, time.perf_counter() - loaded
        return result

    def _place(self, found: Sequence[tuple[Span, torch.Tensor]], pages: Sequence[int]) -> None:
        """Write the spans' K/V into the request's pages, keys moved to where the spans stand now."""
        paged, device = self._paged, self._paged.device
        new = torch.cat([torch.arange(span.start, span.stop) for span, _ in found])
        old = new - torch.cat([torch.full((span.length,), span.shift) for span, _ in found])
        cos, sin = (side.to(device) for side in self._shift.cos_sin(old, new))
        slots = paged.slots(pages, new)
        parts = [entry[:, :, span.offset : span.offset + span.length].to(device) for span, entry in found]
        for layer, (keys, values) in enumerate(self._move(parts, cos, sin)):
            paged.write(layer, keys, values, slots)

    def _recompute(self, positions: Positions, tokens: Tokens, pages: Sequence[int]) -> None:
        block_table = self._paged.block_table(pages)
        for piece in split(runs(positions), self._max_tokens):
            where = torch.from_numpy(np.concatenate([np.arange(a, b) for a, b in piece]))
            slots = self._paged.slots(pages, where)
            per_layer, slot_mapping = self._batch.metadata(piece, block_table, slots)
            ids = torch.from_numpy(tokens)[where].to(self._paged.device)
            with set_forward_context(
                per_layer,
                self._runner.vllm_config,
                num_tokens=len(where),
                slot_mapping=slot_mapping,
                skip_compiled=False,
            ):
                self._runner.get_model()(
                    input_ids=ids,
                    positions=where.to(self._paged.device),
                    intermediate_tensors=None,
                    inputs_embeds=None,
                )


def with_holes(positions: Positions, lost: Sequence[Span]) -> Positions:
    """`positions` and every position of the lost spans, ascending, without repeats."""
    if not lost:
        return positions
    holes = [np.arange(span.start, span.stop, dtype=np.int64) for span in lost]
    return np.unique(np.concatenate([positions, *holes]))
