"""Recompute within the engine's own forward: virtual requests stand behind the step's batch, as rows of their own.

    the step's batch             | request A: its tail | request B: one token |
    with what is held            | request A: its tail | request B: one token | A: run [0, 16) | A: run [700, 716) |

Every layer writes the K/V of all its rows before any of them attends, so A's tail sees what the forward of its own
would have left in the pages, and the weights are read once instead of twice. The model never learns: torch calls a hook
before its forward, which lengthens the inputs, and one behind it, which cuts the outputs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from vllm.forward_context import get_forward_context

from agentcache.blend.virtual import VirtualBatch
from agentcache.plan import Runs

logger = logging.getLogger("vllm.agentcache")
_INPUTS = {"input_ids", "positions", "intermediate_tensors", "inputs_embeds"}


@dataclass(frozen=True, slots=True)
class Rows:
    """Virtual requests. runs: int32 [R, 2]; block_tables: int32 [R, P]; ids, positions, slots: [n], one a token"""

    runs: Runs
    block_tables: torch.Tensor
    ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor


@dataclass(slots=True)
class Held:
    """What waits for the engine's next forward.

    rows: makes the batch; apart: computes the same by a forward of its own; failed: is told that neither could be done
    seconds: its share of the forward, once it is over
    """

    rows: Callable[[], Rows]
    apart: Callable[[], None]
    failed: Callable[[Exception], None]
    seconds: float = 0.0


@dataclass(slots=True)
class _Running:
    held: Held
    num_real: int
    num_held: int
    began: float
    saved: dict[str, Any]


class StepJoin:
    """One model's hooks. `usable` once a forward has gone through them.

    max_tokens, max_rows: of one forward
    """

    def __init__(self, runner: Any, batch: VirtualBatch, max_tokens: int, max_rows: int) -> None:
        config = runner.vllm_config
        self._batch = batch
        self._max_tokens, self._max_rows = max_tokens, max_rows
        self._possible = (
            runner.device.type == "cpu"  # CUDA graphs have the batch's size in them
            and config.parallel_config.pipeline_parallel_size == 1
            and config.lora_config is None
        )
        self._called = False
        self._held: Held | None = None
        self._running: _Running | None = None
        self.joined = self.apart = 0
        if self._possible:
            model: torch.nn.Module = runner.get_model()
            model.register_forward_pre_hook(self._before, with_kwargs=True)
            model.register_forward_hook(self._after)

    @property
    def usable(self) -> bool:
        """False where hooks are not called: a model that is compiled as a whole does not go through them."""
        return self._possible and self._called

    def hold(self, held: Held) -> None:
        """Compute this within the next forward, or before it."""
        assert self._held is None, "one step's work is done before the next step's begins"
        self._held = held

    def flush(self) -> None:
        """Compute what is held now: no forward came."""
        held, self._held = self._held, None
        if held is not None:
            self._apart(held)

    def _apart(self, held: Held) -> None:
        began = time.perf_counter()
        try:
            held.apart()
        except Exception as error:
            held.failed(error)
        self.apart += 1
        held.seconds = time.perf_counter() - began

    def _before(
        self, _: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        self._called = True
        self._running = None
        held, self._held = self._held, None
        if held is None:
            return None
        try:
            joined = None if args else self._joined(held, kwargs)
        except Exception:
            logger.exception(
                "agentcache: recompute could not join a step's batch; it gets a forward of its own"
            )
            self._possible = False
            joined = None
        if joined is None:
            self._apart(held)
            return None
        self.joined += 1
        return args, joined

    def _joined(self, held: Held, kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
        """The model's inputs with the held rows behind them; None if this step's batch is of another kind."""
        began = time.perf_counter()
        context = get_forward_context()
        ids, positions = kwargs.get("input_ids"), kwargs.get("positions")
        if (
            not isinstance(context.attn_metadata, dict)
            or not context.attn_metadata
            or not isinstance(context.slot_mapping, dict)
            or any(value is not None for name, value in kwargs.items() if name not in _INPUTS)
            or kwargs.get("inputs_embeds") is not None
            or context.dp_metadata is not None
            or not (isinstance(ids, torch.Tensor) and isinstance(positions, torch.Tensor))
            or positions.shape != ids.shape
        ):
            return None
        real = next(iter(context.attn_metadata.values()))
        starts = real.query_start_loc
        num_real, num_rows = int(starts[-1]), len(starts) - 1
        if num_real != len(ids) or len(real.slot_mapping) != num_real:
            return None  # padded
        rows = held.rows()
        if num_real + len(rows.ids) > self._max_tokens or num_rows + len(rows.runs) > self._max_rows:
            return None
        stops = real.seq_lens[:num_rows]
        real_runs = torch.stack([stops - starts.diff(), stops], dim=1).numpy().astype(np.int32)
        tables: list[torch.Tensor] = [*real.block_table[:num_rows], *rows.block_tables]
        per_layer, slot_mapping = self._batch.metadata(
            np.concatenate([real_runs, rows.runs]),
            torch.nn.utils.rnn.pad_sequence(tables, batch_first=True),
            torch.cat([real.slot_mapping, rows.slots]),
        )
        if per_layer.keys() != context.attn_metadata.keys():
            return None
        inputs = {
            **kwargs,
            "input_ids": torch.cat([ids, rows.ids.to(ids.dtype)]),
            "positions": torch.cat([positions, rows.positions.to(positions.dtype)]),
        }
        ours = {"attn_metadata": per_layer, "slot_mapping": slot_mapping, "is_padding": None}
        saved = {name: getattr(context, name) for name in ours}
        self._running = _Running(held, num_real, len(rows.ids), began, saved)
        _put(context, ours)
        return inputs

    def _after(self, _: torch.nn.Module, __: tuple[Any, ...], output: Any) -> Any:
        running, self._running = self._running, None
        if running is None:
            return None
        _put(get_forward_context(), running.saved)
        seconds = time.perf_counter() - running.began
        running.held.seconds = seconds * running.num_held / (running.num_held + running.num_real)
        return _first(output, running.num_real)


def _put(context: Any, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        setattr(context, name, value)


def _first(output: Any, count: int) -> Any:
    """The first tokens of what a model returns: hidden states, or these and auxiliary ones."""
    if isinstance(output, torch.Tensor):
        return output[:count]
    return type(output)(_first(one, count) for one in output)


Piece = tuple[Runs, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
"""One prompt's part: runs, block table [P], ids, positions, slots."""


def as_rows(pieces: Sequence[Piece]) -> Rows:
    """Several prompts' parts in one batch."""
    runs, tables, ids, positions, slots = zip(*pieces, strict=True)
    each: list[torch.Tensor] = []
    for own, table in zip(runs, tables, strict=True):
        each += [table] * len(own)
    return Rows(
        np.concatenate(runs),
        torch.nn.utils.rnn.pad_sequence(each, batch_first=True),
        torch.cat(ids),
        torch.cat(positions),
        torch.cat(slots),
    )
