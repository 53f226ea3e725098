"""The model's own layers over virtual requests: the only place where the plug-in calls the model."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from vllm.forward_context import set_forward_context

from agentcache.blend.adapters import without_adapters
from agentcache.blend.joined import Held, Rows, StepJoin, as_rows
from agentcache.blend.pages import PagedKV
from agentcache.blend.virtual import VirtualBatch
from agentcache.entry import Tokens
from agentcache.plan import Positions, Runs, runs, split, take


class NoLayers(Exception):
    """The model cannot be run for its first layers alone; the message is a counted reason."""


class PagedForward:
    """Computes chosen positions of a prompt over its pages: reads K/V of all positions before them, writes theirs.

    runner: vLLM's model runner (V1 or V2)
    max_tokens: longest piece in one forward (vLLM's own batch limit)
    """

    def __init__(self, runner: Any, paged: PagedKV, max_tokens: int) -> None:
        self._runner = runner
        self._paged = paged
        self._max_tokens = max_tokens
        # Some backends' builders have room for as many rows as vLLM serves requests; those for CPUs do not care.
        on_cpu = paged.device.type == "cpu"
        self._max_rows = sys.maxsize if on_cpu else int(runner.vllm_config.scheduler_config.max_num_seqs)
        self._batch = VirtualBatch(runner)
        self._layered = _layered(runner.get_model())
        self.join = StepJoin(runner, self._batch, max_tokens, self._max_rows)

    @property
    def model(self) -> torch.nn.Module:
        model: torch.nn.Module = self._runner.get_model()
        return model

    def run(
        self,
        positions: Positions,
        tokens: Tokens,
        pages: Sequence[int],
        first_layers: int | None = None,
        distance: int = 0,
        eager: bool = False,
    ) -> torch.Tensor:
        """Compute `positions` (ascending); `tokens` are the prompt's from position 0 on, `pages` its pages.

        first_layers: stop behind so many layers; K/V of the later ones stay as they are. Raises NoLayers.
        distance: the model is told positions so much higher, as if the prompt began there
        eager: not the compiled model, which does not exist before vLLM has warmed up
        Returns the last computed layer's output behind the final norm: [n, E].
        """
        if not len(positions):
            return torch.empty(0, 0)
        hidden: list[torch.Tensor] = []
        for piece in split(runs(positions), self._max_tokens, self._max_rows):
            rows = self._rows([(piece, tokens, pages)])
            rows = replace(rows, positions=rows.positions + distance)
            hidden.append(self._forward(rows, first_layers, eager))
        return torch.cat(hidden) if len(hidden) != 1 else hidden[0]

    def run_all(self, jobs: Sequence[tuple[Positions, Tokens, Sequence[int]]]) -> None:
        """`run` for several prompts (positions, tokens, pages), as many of their tokens in one forward as fit.

        Pages of an earlier prompt may be read by a later one: they are written no later than they are read.
        """
        batch: list[tuple[Runs, Tokens, Sequence[int]]] = []
        tokens_left, rows_left = self._max_tokens, self._max_rows
        for positions, tokens, pages in jobs:
            left = runs(positions)
            while len(left):
                piece, left = take(left, tokens_left, rows_left)
                batch.append((piece, tokens, pages))
                tokens_left -= int((piece[:, 1] - piece[:, 0]).sum())
                rows_left -= len(piece)
                if tokens_left == 0 or rows_left == 0:
                    self._run_batch(batch)
                    batch, tokens_left, rows_left = [], self._max_tokens, self._max_rows
        if batch:
            self._run_batch(batch)

    def with_next_step(
        self,
        jobs: Sequence[tuple[Positions, Tokens, Sequence[int]]],
        failed: Callable[[Exception], None],
    ) -> Held | None:
        """As `run_all`, but within the engine's next forward if that can be; None: it was done at once.

        failed: told, before that forward, that it could not be done
        """
        if not any(len(positions) for positions, _, _ in jobs):
            return None
        if not self.join.usable:
            self.join.apart += 1
            self.run_all(jobs)
            return None
        pieces = [(runs(positions), tokens, pages) for positions, tokens, pages in jobs if len(positions)]
        held = Held(lambda: self._rows(pieces), lambda: self.run_all(jobs), failed)
        self.join.hold(held)
        return held

    def _run_batch(self, batch: Sequence[tuple[Runs, Tokens, Sequence[int]]]) -> None:
        self._forward(self._rows(batch))

    def _rows(self, batch: Sequence[tuple[Runs, Tokens, Sequence[int]]]) -> Rows:
        pieces = []
        for piece, tokens, pages in batch:
            where = torch.from_numpy(np.concatenate([np.arange(a, b) for a, b in piece]))
            ids = torch.from_numpy(tokens)[where]
            pieces.append(
                (piece, self._paged.block_table(pages), ids, where, self._paged.slots(pages, where))
            )
        return as_rows(pieces)

    def prefill(self, prompts: Sequence[tuple[Tokens, Sequence[int]]]) -> None:
        """Compute several whole prompts, each over pages of its own, as many in one forward as fit."""
        self.run_all([(np.arange(len(tokens), dtype=np.int64), tokens, pages) for tokens, pages in prompts])

    def step(self, position: int, tokens: Sequence[int], pages: Sequence[Sequence[int]]) -> torch.Tensor:
        """One token at the same position of several prompts, as in a decode step: [len(tokens), E]."""
        rows = np.repeat(np.array([[position, position + 1]], np.int32), len(tokens), axis=0)
        where = torch.full((len(tokens),), position, dtype=torch.int64)
        slots = torch.cat([self._paged.slots(own, where[:1]) for own in pages])
        tables = torch.stack([self._paged.block_table(own) for own in pages])
        return self._forward(Rows(rows, tables, torch.tensor(tokens), where, slots))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Over the whole vocabulary, float32 [n, V], of what `run` or `step` returned."""
        logits: torch.Tensor = self.model.compute_logits(hidden)  # type: ignore[operator]
        return logits.float()

    def _forward(self, rows: Rows, first_layers: int | None = None, eager: bool = False) -> torch.Tensor:
        """One forward over `rows`; see `VirtualBatch.metadata`."""
        device = self._paged.device
        per_layer, slot_mapping = self._batch.metadata(rows.runs, rows.block_tables, rows.slots)
        with (
            set_forward_context(
                per_layer,
                self._runner.vllm_config,
                num_tokens=len(rows.ids),
                slot_mapping=slot_mapping,
                skip_compiled=eager or first_layers is not None,  # compiled for all layers
            ),
            without_adapters(self._runner, len(rows.ids), len(rows.runs)),
            self._only(first_layers),
        ):
            hidden: Any = self.model(
                input_ids=rows.ids.to(
                    device, torch.int32
                ),  # the compiled model reads int64 ids as pairs, without an error
                positions=rows.positions.to(device),
                intermediate_tensors=None,
                inputs_embeds=None,
            )
        last: torch.Tensor = hidden[0] if isinstance(hidden, tuple) else hidden
        return last

    @contextmanager
    def _only(self, first_layers: int | None) -> Iterator[None]:
        """Make the model end behind `first_layers`, by what pipeline parallelism ends a stage with."""
        if first_layers is None:
            yield
            return
        if self._layered is None:
            raise NoLayers("this model's layers cannot be run apart")
        inner: Any = self._layered
        last = inner.end_layer
        inner.end_layer = first_layers
        try:
            yield
        finally:
            inner.end_layer = last


def _layered(model: torch.nn.Module) -> torch.nn.Module | None:
    """The module whose forward runs `layers[start_layer:end_layer]`, which every pipeline-capable model has."""
    for module in model.modules():
        if all(hasattr(module, name) for name in ("layers", "start_layer", "end_layer")):
            return module
    return None
