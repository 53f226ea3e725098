"""Quantised K/V comes back as exactly as its steps allow, whatever the shape."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentcache.kernels.quantise import (
    Bits,
    Quantised,
    dequantise_keys,
    dequantise_values,
    hadamard,
    pack_nibbles,
    quantise_keys,
    quantise_values,
    unpack_nibbles,
)

SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 70), st.integers(1, 3), st.sampled_from([2, 16, 48, 64]))


def data(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """K/V as models have it: a few channels are large for every token."""
    generator = torch.Generator().manual_seed(seed)
    channels = torch.randn(shape[-1], generator=generator) * 3
    return torch.randn(shape, generator=generator) + channels


@settings(max_examples=60, deadline=None)
@given(
    shape=SHAPES, bits=st.sampled_from([4, 8]), group=st.sampled_from([1, 16, 64]), seed=st.integers(0, 99)
)
def test_keys_are_off_by_half_a_step(shape: tuple[int, ...], bits: Bits, group: int, seed: int) -> None:
    x = data(shape, seed)
    q = quantise_keys(x, bits, group)
    back = dequantise_keys(q, group, torch.float32)
    step = q.scale.float().repeat_interleave(group, dim=-3)[..., : shape[-3], :, :]
    assert ((x - back).abs() <= 0.5 * step + 0.002 * x.abs().max()).all()  # 0.002: float16 scale and zero
    assert q.nbytes == q.codes.nbytes + 4 * shape[0] * -(-shape[1] // group) * shape[2] * shape[3]


@settings(max_examples=60, deadline=None)
@given(shape=SHAPES, bits=st.sampled_from([4, 8]), rotate=st.booleans(), seed=st.integers(0, 99))
def test_values_are_off_by_half_a_step(shape: tuple[int, ...], bits: Bits, rotate: bool, seed: int) -> None:
    x = data(shape, seed)
    q = quantise_values(x, bits, rotate=rotate)
    back = dequantise_values(q, torch.float32, rotate=rotate)
    error = hadamard(x - back) if rotate else x - back
    assert (error.abs() <= 0.5 * q.scale.float() + 0.002 * x.abs().max()).all()


@pytest.mark.parametrize("size", [1e-30, 1e-3, 1.0, 6e4])
def test_fp8_keeps_three_bits(size: float) -> None:
    x = data((2, 40, 2, 16), 1) * size
    x = x.clamp(-6e4, 6e4)
    for back in (
        dequantise_keys(quantise_keys(x, "fp8", 32), 32, torch.float32),
        dequantise_values(quantise_values(x, "fp8", rotate=False), torch.float32, rotate=False),
    ):
        assert ((x - back).abs() <= x.abs() / 16 + x.abs().max() / 1000 + 1e-9).all()


@pytest.mark.parametrize("bits", [4, 8, "fp8"])
@pytest.mark.parametrize("value", [0.0, 1.5, -7.0, float("nan"), float("inf")])
def test_constant_and_odd_input_gives_no_surprise(bits: Bits, value: float) -> None:
    """A constant comes back; what is not finite in one channel leaves the others as they are."""
    x = torch.full((1, 5, 1, 4), 1.5)
    x[..., 0] = value
    back = dequantise_keys(quantise_keys(x, bits, 4), 4, torch.float32)
    assert torch.allclose(back[..., 1:], x[..., 1:], rtol=0.04)
    if abs(value) < 10:
        assert torch.allclose(back, x, rtol=0.04)


def test_hadamard_is_its_own_inverse_and_keeps_lengths() -> None:
    for dim in (1, 6, 16, 48, 128):
        x = torch.randn(7, 3, dim)
        assert torch.allclose(hadamard(hadamard(x)), x, atol=1e-5)
        assert torch.allclose(hadamard(x).norm(dim=-1), x.norm(dim=-1), rtol=1e-5)
    one = torch.zeros(1, 16)
    one[0, 3] = 1
    assert torch.allclose(hadamard(one).abs(), torch.full((1, 16), 0.25))


def test_nibbles() -> None:
    codes = torch.randint(0, 16, (3, 5, 8), dtype=torch.uint8)
    assert torch.equal(unpack_nibbles(pack_nibbles(codes)), codes)
    assert pack_nibbles(torch.tensor([[1, 2, 3, 4]], dtype=torch.uint8)).tolist() == [
        [1 | 3 << 4, 2 | 4 << 4]
    ]


def test_rotation_helps_outliers() -> None:
    x = torch.randn(1, 100, 2, 64, generator=torch.Generator().manual_seed(0))
    x[..., 5] *= 12
    errors = []
    for rotate in (False, True):
        q: Quantised = quantise_values(x, 4, rotate=rotate)
        errors.append(float((dequantise_values(q, torch.float32, rotate=rotate) - x).square().mean()))
    assert errors[1] < 0.6 * errors[0]


@pytest.mark.parametrize("bits", [4, 8, "fp8"])
@pytest.mark.parametrize("shape", [(3, 70, 2, 64), (1, 1, 1, 16), (2, 33, 3, 48), (1, 40, 2, 128)])
def test_one_pass_reading_equals_the_reference(bits: Bits, shape: tuple[int, ...]) -> None:
    from agentcache.kernels.quantise_cpu import keys_to_bf16, values_to_bf16

    x, out = data(shape, 5), torch.empty(shape, dtype=torch.bfloat16)
    q = quantise_keys(x, bits, 32)
    keys_to_bf16(q, 32, out)
    assert torch.equal(out, dequantise_keys(q, 32, torch.bfloat16))
    q = quantise_values(x, bits, rotate=bits == 4)
    values_to_bf16(q, out)
    expected = dequantise_values(q, torch.float32, rotate=bits == 4)
    assert torch.allclose(out.float(), expected, rtol=2**-8, atol=1e-5)
