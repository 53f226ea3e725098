"""Moving spans of entries: the fast way on the CPU is the general one, but for the last bit of a few keys (one may
fuse a multiplication and an addition where the other rounds between them)."""

from __future__ import annotations

import pytest
import torch

from agentcache.blend.correction import Offsets
from agentcache.blend.move import _with_torch, choose
from agentcache.blend.rope import KeyShift
from agentcache.kernels.rotate import rotate_keys


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("neox", [True, False])
def test_every_way_gives_the_same_keys(dtype: torch.dtype, neox: bool) -> None:
    torch.manual_seed(0)
    entries = [torch.randn(2, 3, n, 2, 16).to(dtype) for n in (5, 1, 1500)]
    parts = [entries[0][:, :, 1:4], entries[1], entries[2]]  # a span may be a part of its entry
    count = sum(part.shape[2] for part in parts)
    angle = torch.randn(count, 1, 8) * 50
    angle[:3] = 0
    cos, sin = angle.cos(), angle.sin()
    shift = KeyShift(torch.zeros(1, 8, dtype=torch.complex64), neox)
    move = choose(torch.device("cpu"), dtype, 16, shift)
    fast = [(keys.clone(), values.clone()) for keys, values in move(parts, cos, sin, None)]
    general = list(_with_torch(parts, cos, sin, None, neox, 0))
    assert len(fast) == len(general) == 3
    for layer, ((keys, values), (expected_keys, expected_values)) in enumerate(
        zip(fast, general, strict=True)
    ):
        torch.testing.assert_close(keys, expected_keys, rtol=2**-7, atol=1e-5)
        assert (keys != expected_keys).float().mean() < 1e-3
        assert torch.equal(values, expected_values)
        assert torch.equal(keys[:3], parts[0][0, layer]), "what does not move keeps every bit"
        whole = rotate_keys(torch.cat([part[0, layer] for part in parts]), cos, sin, neox=neox)
        torch.testing.assert_close(keys, whole, rtol=2**-7, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("neox", [True, False])
def test_every_way_adds_the_same(dtype: torch.dtype, neox: bool) -> None:
    torch.manual_seed(0)
    parts = [torch.randn(2, 3, n, 2, 16).to(dtype) for n in (5, 1, 90)]
    count = sum(part.shape[2] for part in parts)
    angle, own = torch.randn(2, count, 1, 8) * 50
    angle[:5] = 0
    rows = torch.randint(0, 4, (count,))
    rows[:5] = 4
    table = torch.randn(3, 2, 5, 2, 16)
    table[:, :, 4] = 0
    offsets = Offsets(table, rows, own.cos(), own.sin(), neox, 0)
    cos, sin = angle.cos(), angle.sin()
    move = choose(torch.device("cpu"), dtype, 16, KeyShift(torch.zeros(1, 8, dtype=torch.complex64), neox))
    tolerance = 0.06 if dtype == torch.bfloat16 else 1e-4
    for layer, (keys, values) in enumerate(move(parts, cos, sin, offsets)):
        before = torch.cat([part[:, layer] for part in parts], dim=1).float()
        added = rotate_keys(table[layer, 0, rows], own.cos(), own.sin(), neox=neox)
        expected = rotate_keys(before[0] + added, cos, sin, neox=neox)
        torch.testing.assert_close(keys.float(), expected, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(
            values.float(), before[1] + table[layer, 1, rows], rtol=tolerance, atol=tolerance
        )
        assert torch.equal(keys[:5], parts[0][0, layer]), "what lacks nothing keeps every bit"
        assert torch.equal(values[:5], parts[0][1, layer])
        assert (values[5:].float() - before[1, 5:]).abs().max() > 0.5
