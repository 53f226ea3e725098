"""The fast rotation against the obvious one, and rotations against each other."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentcache.kernels.rotate import rotate_keys, rotate_keys_reference


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 40),
    heads=st.integers(1, 4),
    head_dim=st.sampled_from([8, 64, 80]),
    rotary=st.sampled_from([4, 8]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    neox=st.booleans(),
    at_end=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_the_fast_rotation_is_the_obvious_one(
    n: int, heads: int, head_dim: int, rotary: int, dtype: torch.dtype, neox: bool, at_end: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randn(n, heads, head_dim, generator=generator).to(dtype)
    angle = torch.randn(n, 1, rotary // 2, generator=generator) * 100
    cos, sin = angle.cos(), angle.sin()
    first = head_dim - rotary if at_end else 0
    expected = rotate_keys_reference(keys, cos, sin, neox=neox, first=first)
    out = torch.full_like(keys, float("nan"))
    assert rotate_keys(keys, cos, sin, neox=neox, first=first, out=out) is out
    tolerance = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 4e-2}[dtype]
    torch.testing.assert_close(out, expected, atol=tolerance, rtol=tolerance)
    untouched = torch.ones(head_dim, dtype=torch.bool)
    untouched[first : first + rotary] = False
    assert torch.equal(out[..., untouched], keys[..., untouched]), "what is not rotary is copied"


@pytest.mark.parametrize("neox", [True, False])
def test_there_and_back(neox: bool) -> None:
    keys = torch.randn(7, 2, 16)
    angle = torch.randn(7, 1, 8)
    there = rotate_keys(keys, angle.cos(), angle.sin(), neox=neox)
    back = rotate_keys(there, angle.cos(), -angle.sin(), neox=neox)
    torch.testing.assert_close(back, keys)
    assert (there - keys).abs().max() > 0.1


def test_no_distance_changes_no_bit() -> None:
    keys = torch.randn(5, 2, 16).bfloat16()
    moved = rotate_keys(keys, torch.ones(5, 1, 8), torch.zeros(5, 1, 8), neox=True)
    assert torch.equal(moved, keys)
