"""What reused K/V lack, on average, because they were computed without the text that now stands before them.

Keys and values of real code that are computed behind other code differ from those computed by themselves, and a part
of the difference is the same for all text: it depends on the layer, the head and the component, and on how many tokens
the entry had in front of it itself. That part is measured once a model (`agentcache.quality.calibrate`) and added to
every reused token whose context is another one, where it is placed; what is recomputed then attends to better K/V.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from agentcache.blend.rope import KeyShift
from agentcache.kernels.rotate import rotate_keys
from agentcache.paths import ensure_private

EDGES = (32, 128, 512)
"""Tokens in front of a token in its own entry's stream, where one mean ends and the next begins."""
_MIN_TOKENS = 64
"""A mean of fewer is left out for the one over all tokens."""
_VERSION = "1"


@dataclass(frozen=True, slots=True)
class Offsets:
    """What is added to n tokens, before their keys are moved.

    table: float32 [L, parts, B + 1, H, D], keys as if at position 0; the last of B + 1 rows is zero
    rows: of `table`, one a token, int64 [n]
    cos, sin: float32 [n, 1, R/2], from position 0 to where each token's key was rotated for
    """

    table: torch.Tensor
    rows: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    neox: bool
    first: int

    @classmethod
    def at(
        cls, table: torch.Tensor, shift: KeyShift, old: torch.Tensor, exact: torch.Tensor
    ) -> Offsets | None:
        """For tokens whose keys were rotated for positions `old`, int64 [n]; None if there is nothing to add.

        exact: bool [n], tokens whose context is the one they were computed in
        """
        if bool(exact.all()):
            return None
        rows = _rows(old)
        rows[exact] = table.shape[2] - 1
        cos, sin = shift.cos_sin(torch.zeros_like(old), old)
        return cls(table, rows.to(table.device), cos, sin, shift.neox, shift.first)

    def added_to(self, kv: torch.Tensor, layer: int, tokens: slice) -> torch.Tensor:
        """K/V of one layer [parts, m, H, D], those of `tokens`, with what they lack; their own dtype, a copy."""
        rows = self.rows[tokens]
        own = self.table[layer][:, rows]
        keys = rotate_keys(own[0], self.cos[tokens], self.sin[tokens], neox=self.neox, first=self.first)
        return (kv.float() + torch.stack([keys, *own[1:]])).to(kv.dtype)


@dataclass(frozen=True, slots=True)
class Correction:
    """The mean deviation of a model's K/V, and what it is worth.

    means: float32 [B, parts, L, H, D], keys as if at position 0; B = len(EDGES) + 1
    strength: the share of it that is added; 0: nothing is, it did not help
    tokens: how many were measured
    kl_without, kl_with: of blended predictions, nats, on prompts that the means do not come of
    """

    means: torch.Tensor
    strength: float
    tokens: int
    kl_without: float
    kl_with: float

    def table(self, device: torch.device) -> torch.Tensor | None:
        """`Offsets.table`; None if there is nothing to add."""
        if not self.strength:
            return None
        table = self.means.permute(2, 1, 0, 3, 4) * self.strength
        return torch.cat([table, torch.zeros_like(table[:, :, :1])], dim=2).contiguous().to(device)

    def summary(self) -> dict[str, float]:
        """Its figures, without the means."""
        names = ("strength", "tokens", "kl_without", "kl_with")
        return {name: getattr(self, name) for name in names}

    def save(self, path: Path) -> None:
        """Write it, whole or not at all."""
        ensure_private(path.parent)
        tmp = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            figures = {"version": _VERSION, "figures": json.dumps(self.summary())}
            save_file({"means": self.means.contiguous()}, tmp, metadata=figures)
            tmp.chmod(0o600)
            tmp.replace(path)
        finally:
            tmp.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: Path, shape: tuple[int, ...]) -> Correction | None:
        """What was saved; None if there is nothing, or nothing usable. shape: (parts, L, H, D)"""
        try:
            with safe_open(path, "pt") as file:
                metadata = file.metadata() or {}
                means = file.get_tensor("means")
                figures = json.loads(metadata.get("figures", "{}"))
            if metadata.get("version") != _VERSION or tuple(means.shape) != (len(EDGES) + 1, *shape):
                return None
            return cls(means, **figures)
        except (OSError, SafetensorError, ValueError, TypeError):
            return None


class Deviations:
    """Sums of how K/V of full prefills differ from those of entries. `+` and `-` make those of more or fewer tokens."""

    def __init__(self, sums: torch.Tensor, counts: torch.Tensor) -> None:
        self._sums = sums  # float32 [B, parts, L, H, D]
        self._counts = counts  # int64 [B]

    @classmethod
    def of(
        cls, full: torch.Tensor, entry: torch.Tensor, new: torch.Tensor, old: torch.Tensor, shift: KeyShift
    ) -> Deviations:
        """Of n tokens.

        full, entry: [parts, L, n, H, D] on the CPU, keys rotated for positions `new` and `old`, int64 [n]
        """
        difference = _at_zero(full, new, shift) - _at_zero(entry, old, shift)
        rows = _rows(old)
        sums = torch.stack([difference[:, :, rows == row].sum(2) for row in range(len(EDGES) + 1)])
        return cls(sums, torch.bincount(rows, minlength=len(EDGES) + 1))

    def __add__(self, other: Deviations) -> Deviations:
        return Deviations(self._sums + other._sums, self._counts + other._counts)

    def __sub__(self, other: Deviations) -> Deviations:
        return Deviations(self._sums - other._sums, self._counts - other._counts)

    @property
    def tokens(self) -> int:
        return int(self._counts.sum())

    def means(self) -> torch.Tensor:
        """float32 [B, parts, L, H, D]; that of all tokens where too few had so many in front of them."""
        overall = self._sums.sum(0) / max(1, self.tokens)
        own = self._sums / self._counts.clamp(min=1)[:, None, None, None, None]
        enough = (self._counts >= _MIN_TOKENS)[:, None, None, None, None]
        return torch.where(enough, own, overall)


def _rows(old: torch.Tensor) -> torch.Tensor:
    return torch.bucketize(old, torch.tensor(EDGES), right=True)


def _at_zero(kv: torch.Tensor, positions: torch.Tensor, shift: KeyShift) -> torch.Tensor:
    """float32 [parts, L, n, H, D], keys as if at position 0."""
    cos, sin = (side.cpu() for side in shift.cos_sin(positions, torch.zeros_like(positions)))
    out = kv.float()
    keys = [rotate_keys(layer, cos, sin, neox=shift.neox, first=shift.first) for layer in out[0]]
    return torch.cat([torch.stack(keys)[None], out[1:]])
