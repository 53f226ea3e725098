"""The rotation that moves a model's stored keys, taken from the model's own rotary modules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

SUPPORTED_ROTARY = (
    "RotaryEmbedding",
    "LinearScalingRotaryEmbedding",
    "Llama3RotaryEmbedding",
    "YaRNScalingRotaryEmbedding",
    "NTKScalingRotaryEmbedding",
    "DynamicNTKAlphaRotaryEmbedding",
    "DynamicNTKScalingRotaryEmbedding",
    "DeepseekScalingRotaryEmbedding",
)
"""Rotary classes of vLLM that look a position up in one table. Others depend on modality, LoRA or more than one."""

_LONG = "Phi3LongRoPEScaledRotaryEmbedding"
"""Two tables, one of which the engine uses for all its life: which one follows from its longest prompt."""

SUPPORTED_ROPE_TYPES = ("default", "linear", "llama3", "yarn")
"""Of transformers' rotary modules, whose frequencies do not depend on the prompt's length."""


class UnsupportedPositions(Exception):
    """The model's position scheme cannot be shifted; the message is a counted fallback reason."""


@dataclass(frozen=True, slots=True)
class KeyShift:
    """What multiplies a key to move it from one position to another, for one model.

    table: complex64 [max_position, R/2]; row p is what the model multiplies the rotary pairs of a key at
        position p by. Taken from the module's own buffer, so scaled frequencies, attention factors and even the
        rounding of a bfloat16 table cancel exactly in the quotient of two rows.
    neox, first: pairing of components and the first rotary one, see `agentcache.kernels.rotate`
    """

    table: torch.Tensor
    neox: bool
    first: int = 0

    @property
    def max_positions(self) -> int:
        return len(self.table)

    @property
    def rotary_dim(self) -> int:
        return 2 * self.table.shape[1]

    def cos_sin(self, old: torch.Tensor, new: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """For keys moving from positions `old` to `new`, int64 [n] both: float32 [n, 1, R/2], beside the table."""
        old, new = old.to(self.table.device), new.to(self.table.device)
        quotient = self.table[new] / self.table[old]
        quotient[old == new] = 1  # a row by itself may miss 1 by a rounding; such keys keep every bit
        return quotient.real.contiguous()[:, None], quotient.imag.contiguous()[:, None]

    @classmethod
    def of_layers(
        cls,
        rotary_modules: Iterable[torch.nn.Module | None],
        dtype: torch.dtype = torch.float32,
        max_positions: int = 0,
    ) -> KeyShift:
        """The shift shared by all attention layers.

        rotary_modules: the rotary module of every layer that has K/V, None where a layer has none.
        dtype, max_positions: of the engine; needed for transformers' modules, which have no table but compute it
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
            own = cls._of_module(module, dtype, max_positions)
            if shift is None:
                shift = own
            elif own.neox != shift.neox or not torch.equal(own.table, shift.table):
                raise UnsupportedPositions("unknown position scheme: rotary tables differ between layers")
        if shift is None:
            raise UnsupportedPositions("unknown position scheme: no attention layer found")
        return shift

    @classmethod
    def _of_module(cls, module: Any, dtype: torch.dtype, max_positions: int) -> KeyShift:
        name = type(module).__name__
        if _is_of_transformers(module):
            return cls(_computed_table(module, dtype, max_positions), True)
        if name == _LONG:
            both, border = module.long_short_cos_sin_cache.float(), module.original_max_position_embeddings
            used = both[border:] if module.use_long_rope else both[:border]
            return cls(_complex(*used.chunk(2, dim=-1)), True)
        if name not in SUPPORTED_ROTARY or len(getattr(module, "scaling_factors", [1])) != 1:
            raise UnsupportedPositions(f"unknown position scheme: {name}")
        table: torch.Tensor = module.cos_sin_cache
        return cls(_complex(*table.float().chunk(2, dim=-1)), bool(module.is_neox_style))


def possible_shifts(
    model: torch.nn.Module,
    attention: Mapping[str, torch.nn.Module],
    head_dim: int,
    dtype: torch.dtype,
    max_positions: int,
) -> list[KeyShift]:
    """What the model's modules admit, the most likely first; which one is right is for a trial to tell.

    attention: layer name to attention module. Where a module does not say which components of a head are rotary,
    and how they pair, every way that models have is listed.
    """
    rotary = rotary_modules(model, attention.values())
    stated = KeyShift.of_layers(rotary, dtype, max_positions)
    if stated.rotary_dim > head_dim:
        raise UnsupportedPositions("unknown position scheme: more rotary components than a head has")
    pairings = (True, False) if any(_is_of_transformers(module) for module in rotary) else (stated.neox,)
    places = sorted({0, head_dim - stated.rotary_dim})
    return [replace(stated, neox=neox, first=first) for first in places for neox in pairings]


def rotary_modules(model: torch.nn.Module, attention: Iterable[torch.nn.Module]) -> list[Any]:
    """For each attention module the `rotary_emb` of the nearest module around it that has one; None if it is None."""
    modules: dict[str, Any] = dict(model.named_modules())
    names = {id(module): name for name, module in modules.items()}
    found = []
    for module in attention:
        around = names.get(id(module), "")
        while around and not hasattr(modules[around], "rotary_emb"):
            around = around.rpartition(".")[0]
        found.append(getattr(modules.get(around), "rotary_emb", None))
    return found


def _is_of_transformers(module: torch.nn.Module | None) -> bool:
    return hasattr(module, "inv_freq") and hasattr(module, "attention_scaling")


def _computed_table(module: Any, dtype: torch.dtype, max_positions: int) -> torch.Tensor:
    """The table of a transformers module: what it answers for every position."""
    kind = getattr(module, "rope_type", None)
    if kind not in SUPPORTED_ROPE_TYPES:
        raise UnsupportedPositions(f"unknown position scheme: {type(module).__name__} of kind {kind}")
    device = module.inv_freq.device
    positions = torch.arange(max_positions, device=device)[None]
    try:
        cos, sin = module(torch.empty(1, dtype=dtype, device=device), positions)
    except TypeError as error:  # it wants to know more than positions
        raise UnsupportedPositions(f"unknown position scheme: {type(module).__name__}") from error
    half = cos.shape[-1] // 2
    return _complex(cos[0, :, :half].float(), sin[0, :, :half].float())


def _complex(cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    return torch.complex(cos.contiguous(), sin.contiguous())
