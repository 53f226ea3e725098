"""The rotation that moves a model's stored keys, taken from the model's own rotary modules."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

SUPPORTED_ROTARY = (
    "RotaryEmbedding",
    "Llama3RotaryEmbedding",
    "YaRNScalingRotaryEmbedding",
    "NTKScalingRotaryEmbedding",
)
"""Rotary classes of vLLM that look a position up in one table. Others depend on length, modality or LoRA."""


class UnsupportedPositions(Exception):
    """The model's position scheme cannot be shifted; the message is a counted fallback reason."""


@dataclass(frozen=True, slots=True)
class KeyShift:
    """What multiplies a key to move it from one position to another, for one model.

    table: complex64 [max_position, R/2]; row p is what the model multiplies the rotary pairs of a key at
        position p by. Taken from the module's own buffer, so scaled frequencies, attention factors and even the
        rounding of a bfloat16 table cancel exactly in the quotient of two rows.
    neox: pairing of components, see `agentcache.kernels.rotate`
    """

    table: torch.Tensor
    neox: bool

    @property
    def max_positions(self) -> int:
        return len(self.table)

    @property
    def rotary_dim(self) -> int:
        return 2 * self.table.shape[1]

    def cos_sin(self, old: torch.Tensor, new: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """For keys that move from positions `old` to `new` (int64 [n] both): float32 [n, 1, R/2] each."""
        quotient = self.table[new] / self.table[old]
        unmoved = (
            old == new
        )  # the quotient of a row by itself may miss 1 by a rounding; such keys keep every bit
        quotient[unmoved] = 1
        return quotient.real.contiguous()[:, None], quotient.imag.contiguous()[:, None]

    @classmethod
    def of_layers(cls, rotary_modules: Iterable[torch.nn.Module | None]) -> KeyShift:
        """The shift shared by all attention layers.

        rotary_modules: the rotary module of every layer that has K/V, None where a layer has none.
        Raises UnsupportedPositions.
        """
        shift: KeyShift | None = None
        seen: set[int] = set()
        for module in rotary_modules:
            if module is None:
                raise UnsupportedPositions(
                    "unknown position scheme: an attention layer has no rotary embedding"
                )
            if id(module) in seen:
                continue
            seen.add(id(module))
            own = cls._of_module(module)
            if shift is None:
                shift = own
            elif own.neox != shift.neox or not torch.equal(own.table, shift.table):
                raise UnsupportedPositions("unknown position scheme: rotary tables differ between layers")
        if shift is None:
            raise UnsupportedPositions("unknown position scheme: no attention layer found")
        return shift

    @classmethod
    def _of_module(cls, module: torch.nn.Module) -> KeyShift:
        name = type(module).__name__
        if name not in SUPPORTED_ROTARY:
            raise UnsupportedPositions(f"unknown position scheme: {name}")
        buffer = module.cos_sin_cache.float().contiguous()  # type: ignore[operator]
        half = buffer.shape[-1] // 2
        return cls(
            torch.complex(buffer[:, :half].contiguous(), buffer[:, half:].contiguous()),
            bool(module.is_neox_style),
        )
