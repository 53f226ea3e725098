"""The file a model's correction is kept in, and what is measured for it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
import torch

from agentcache.blend.correction import EDGES, Correction, Deviations, Offsets
from agentcache.blend.rope import KeyShift
from agentcache.kernels.rotate import rotate_keys

SHAPE = (2, 3, 2, 8)


def a_shift() -> KeyShift:
    angle = torch.arange(2000)[:, None] * torch.tensor([1.0, 0.3, 0.1, 0.01])
    return KeyShift(torch.polar(torch.ones_like(angle), angle), neox=True)


def a_correction(strength: float = 0.5) -> Correction:
    torch.manual_seed(0)
    return Correction(torch.randn(len(EDGES) + 1, *SHAPE), strength, 900, 0.02, 0.01)


def test_it_is_kept_for_its_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "corrections" / "model-0.safetensors"
    saved = a_correction()
    saved.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    loaded = Correction.load(path, SHAPE)
    assert loaded is not None
    assert loaded.summary() == saved.summary()
    assert torch.equal(loaded.means, saved.means)


@pytest.mark.parametrize("damage", ["missing", "short", "other model", "text"])
def test_what_cannot_be_used_is_measured_again(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "model-0.safetensors"
    if damage != "missing":
        a_correction().save(path)
    if damage == "short":
        path.write_bytes(path.read_bytes()[:-100])
    if damage == "text":
        path.write_text("nothing of the kind")
    assert Correction.load(path, (2, 3, 4, 8) if damage == "other model" else SHAPE) is None


def test_a_mean_deviation_is_found_whatever_the_positions() -> None:
    torch.manual_seed(1)
    shift, planted = a_shift(), a_correction().means
    old = torch.arange(700)
    new = old + 611
    entry = torch.randn(2, 3, 700, 2, 8)
    rows = torch.bucketize(old, torch.tensor(EDGES), right=True)
    zero = torch.zeros_like(old)

    def moved(kv: torch.Tensor, begin: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
        cos, sin = shift.cos_sin(begin, end)
        return torch.stack([torch.stack([rotate_keys(layer, cos, sin, neox=True) for layer in kv[0]]), kv[1]])

    full = moved(moved(entry, old, zero) + planted[rows].permute(1, 2, 0, 3, 4), zero, new)
    found = Deviations.of(full, entry, new, old, shift)
    assert found.tokens == 700
    torch.testing.assert_close(found.means()[1:], planted[1:], atol=1e-3, rtol=1e-3)
    overall = (planted[rows].sum(0)) / 700
    torch.testing.assert_close(found.means()[0], overall, atol=1e-3, rtol=1e-3)
    wrong = Deviations.of(full, entry, new + 1, old, shift).means()
    assert (wrong[1:, 0] - planted[1:, 0]).abs().max() > 0.1, "keys of a wrong position show"
    less = (found + found) - found
    torch.testing.assert_close(less.means(), found.means(), atol=1e-4, rtol=1e-4)

    table = Correction(found.means(), 1.0, 0, 0.0, 0.0).table(torch.device("cpu"))
    assert table is not None
    exact = torch.zeros(700, dtype=torch.bool)
    exact[600:] = True
    offsets = Offsets.at(table, shift, old, exact)
    assert offsets is not None
    mended = torch.stack([offsets.added_to(entry[:, layer], layer, slice(None)) for layer in range(3)], dim=1)
    torch.testing.assert_close(
        moved(mended, old, new)[:, :, 32:600], full[:, :, 32:600], atol=5e-3, rtol=5e-3
    )
    assert torch.equal(mended[:, :, 600:], entry[:, :, 600:]), "what lacks nothing keeps every bit"


def test_nothing_is_added_without_strength_or_to_exact_tokens() -> None:
    assert a_correction(0.0).table(torch.device("cpu")) is None
    table = a_correction().table(torch.device("cpu"))
    assert table is not None
    old = torch.arange(5)
    assert Offsets.at(table, a_shift(), old, torch.ones(5, dtype=torch.bool)) is None
