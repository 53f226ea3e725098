"""Every Triton kernel against its reference in torch, on random shapes, strides and dtypes.

Where there is a GPU the kernels run on it (`benchmarks/gpu.sh`); elsewhere Triton interprets them, and needs
TRITON_INTERPRET=1 before it is imported: `test_twins.py` runs this file so, in a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from agentcache.kernels import (
    deviation_gpu,
    gather_gpu,
    quantise_gpu,
    rotate_gpu,
    scatter_gpu,
    tail_attention_gpu,
)
from agentcache.kernels import quantise as reference
from agentcache.kernels.deviation import key_deviation
from agentcache.kernels.gather import gather_by_index
from agentcache.kernels.pages import PageLayout
from agentcache.kernels.rotate import rotate_keys_reference
from agentcache.kernels.scatter import rotate_scatter
from agentcache.kernels.tail_attention import tail_attention

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Relative; the interpreter rounds to bfloat16 towards zero, a GPU to nearest: one bit of eight.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2**-7, torch.float16: 2**-10}
# tokens, heads, head_dim, rotary: whole and partial, head sizes that are no powers of two, one token, many heads
SHAPES = [
    (7, 2, 64, 64),
    (1, 1, 32, 16),
    (33, 3, 80, 80),
    (5, 20, 96, 64),
    (9, 1, 576, 64),
    (2, 40, 128, 128),
]


def there(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(DEVICE)


def close(result: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    assert result.dtype == expected.dtype
    torch.testing.assert_close(
        result.cpu().float(), expected.cpu().float(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
    )


def strided(tensor: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """The same values with other strides: heads before tokens, or a slice of something wider; on the device."""
    tensor = there(tensor)
    way = int(torch.randint(3, (1,), generator=random))
    if way == 0:
        return tensor
    if way == 1:
        return tensor.transpose(0, 1).contiguous().transpose(0, 1)
    wide = torch.full((*tensor.shape[:-1], tensor.shape[-1] + 8), float("nan")).to(tensor)
    wide[..., 3 : 3 + tensor.shape[-1]] = tensor
    return wide[..., 3 : 3 + tensor.shape[-1]]


@pytest.fixture
def random(request: pytest.FixtureRequest) -> torch.Generator:
    return torch.Generator().manual_seed(len(request.node.name) * 7919 + sum(map(ord, request.node.name)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize("at_end", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_rotate(
    shape: tuple[int, int, int, int], at_end: bool, neox: bool, dtype: torch.dtype, random: torch.Generator
) -> None:
    tokens, heads, dim, rotary = shape
    keys = torch.randn(tokens, heads, dim, generator=random).to(dtype)
    angle = torch.randn(tokens, 1, rotary // 2, generator=random) * 100
    cos, sin = angle.cos(), angle.sin()
    first = dim - rotary if at_end else 0
    out = strided(torch.zeros_like(keys), random)
    rotate_gpu.rotate(strided(keys, random), there(cos), there(sin), out, neox, first)
    close(out, rotate_keys_reference(keys, cos, sin, neox=neox, first=first), dtype)


# Layouts as backends have them, by [parts, page_size, H, D] to what lies behind a page: its strides, its extent.
def head_major(p: int, t: int, h: int, d: int) -> tuple[tuple[int, ...], int]:
    return (d, p * d, t * p * d, 1), p * t * h * d


def token_major(p: int, t: int, h: int, d: int) -> tuple[tuple[int, ...], int]:
    return (t * h * d, h * d, d, 1), p * t * h * d


def transposed_keys(p: int, t: int, h: int, d: int) -> tuple[tuple[int, ...], int]:
    """Components before tokens, and room between pages, as where layers share storage."""
    return (t * h * d, 1, d * t, t), p * t * h * d + 24


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", [head_major, token_major, transposed_keys])
@pytest.mark.parametrize(
    ("parts", "shape"), [(2, (6, 2, 64, 64)), (2, (17, 3, 80, 32)), (1, (5, 1, 576, 64))]
)
def test_scatter_and_gather(
    parts: int,
    shape: tuple[int, int, int, int],
    order: Callable[..., tuple[tuple[int, ...], int]],
    dtype: torch.dtype,
    random: torch.Generator,
) -> None:
    tokens, heads, dim, rotary = shape
    size, num_pages = 16, 7
    strides, extent = order(parts, size, heads, dim)
    grid = torch.cartesian_prod(*(torch.arange(n) for n in (parts, size, heads, dim)))
    layout = PageLayout((grid * torch.tensor(strides)).sum(1).view(parts, size, heads, dim), extent)
    pages = torch.randn(num_pages, extent, generator=random).to(dtype)
    slots = torch.randperm(num_pages * size, generator=random)[:tokens]
    keys, values = torch.randn(2, tokens, heads, dim, generator=random).to(dtype)
    angle = torch.randn(tokens, 1, rotary // 2, generator=random)
    cos, sin = angle.cos(), angle.sin()

    expected, result = pages.clone(), there(pages.clone())
    neox, first = parts == 2, dim - rotary
    given = None if parts == 1 else values
    rotate_scatter(keys, given, cos, sin, expected, layout, slots, neox=neox, first=first)
    moved = strided(values, random) if given is not None else None
    on_device = layout.to(DEVICE)
    scatter_gpu.scatter(
        strided(keys, random), moved, there(cos), there(sin), result, on_device, there(slots), neox, first
    )
    close(result, expected, dtype)
    untouched = torch.ones_like(pages, dtype=torch.bool)
    untouched.view(-1)[layout.index(slots).flatten()] = False
    assert torch.equal(result.cpu()[untouched], pages[untouched]), "nothing else is written"

    slots = torch.randint(num_pages * size, (tokens * 3,), generator=random)
    gathered = gather_gpu.gather(there(pages), on_device, there(slots))
    assert torch.equal(gathered.cpu(), gather_by_index(pages, layout, slots))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_deviation(shape: tuple[int, int, int, int], dtype: torch.dtype, random: torch.Generator) -> None:
    fresh, reused = torch.randn(2, *shape[:3], generator=random).to(dtype)
    result = deviation_gpu.deviation(strided(fresh, random), strided(reused, random))
    torch.testing.assert_close(result.cpu(), key_deviation(fresh, reused))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("queries", "heads", "kv_heads", "dim", "keys"),
    [(5, 4, 2, 32, 100), (48, 6, 2, 64, 700), (3, 2, 2, 80, 10), (1, 3, 1, 8, 65), (33, 8, 1, 128, 1100)],
)
def test_tail_attention(
    queries: int, heads: int, kv_heads: int, dim: int, keys: int, dtype: torch.dtype, random: torch.Generator
) -> None:
    asking = torch.randn(queries, heads, dim, generator=random).to(dtype)
    asked = torch.randn(keys, kv_heads, dim, generator=random).to(dtype) * 2
    where = torch.randint(keys, (queries,), generator=random)
    expected = tail_attention(asking, asked, where, dim**-0.5)
    result = tail_attention_gpu.attention(
        strided(asking, random), strided(asked, random), there(where), dim**-0.5
    )
    torch.testing.assert_close(result.cpu(), expected, rtol=1e-3, atol=1e-4)
    assert result.sum().item() == pytest.approx(queries * heads, rel=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bits", [4, 8, "fp8"])
@pytest.mark.parametrize("shape", [(2, 40, 3, 64), (5, 1, 96), (1, 33, 2, 80)])
def test_quantise(
    shape: tuple[int, ...], bits: reference.Bits, dtype: torch.dtype, random: torch.Generator
) -> None:
    if bits == "fp8" and DEVICE.type == "cuda" and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("this GPU casts nothing to fp8; the reference runs there")
    x = (torch.randn(shape, generator=random) * 3).to(dtype)
    expected = reference.quantise_keys(x, bits, 32)
    same_codes(quantise_gpu.quantise_keys(there(x), bits, 32), expected)
    result = quantise_gpu.dequantise_keys(moved(expected), 32, dtype)
    close(result, reference.dequantise_keys(expected, 32, dtype), dtype)
    for rotate in (False, True):
        expected = reference.quantise_values(x, bits, rotate=rotate)
        same_codes(quantise_gpu.quantise_values(there(x), bits, rotate=rotate), expected)
        result = quantise_gpu.dequantise_values(moved(expected), dtype, rotate=rotate)
        close(result, reference.dequantise_values(expected, dtype, rotate=rotate), dtype)


def moved(q: reference.Quantised) -> reference.Quantised:
    return reference.Quantised(
        there(q.codes), there(q.scale), None if q.zero is None else there(q.zero), q.bits
    )


def same_codes(result: reference.Quantised, expected: reference.Quantised) -> None:
    """Nearly all codes alike, the others neighbours: where the order of rounding decides, and nowhere else."""
    torch.testing.assert_close(result.scale.cpu(), expected.scale, rtol=2**-9, atol=0)
    assert (result.zero is None) == (expected.zero is None)
    if result.zero is not None and expected.zero is not None:
        torch.testing.assert_close(result.zero.cpu(), expected.zero, rtol=2**-9, atol=2**-9)
    codes, wanted = result.codes.cpu(), expected.codes
    if expected.bits == "fp8":
        torch.testing.assert_close(codes.float(), wanted.float(), rtol=0.13, atol=0.01)
    else:
        if expected.bits == 4:
            codes, wanted = reference.unpack_nibbles(codes), reference.unpack_nibbles(wanted)
        assert (codes.int() - wanted.int()).abs().max() <= 1
    assert (codes.float() != wanted.float()).float().mean() < 0.05
