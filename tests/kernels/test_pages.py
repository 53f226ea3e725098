"""Learning a page's layout, reading tokens through it and writing them, for layouts that real backends have."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from agentcache.kernels.gather import gather_by_index, gather_runs, gather_tokens
from agentcache.kernels.pages import learn_layout
from agentcache.kernels.rotate import rotate_keys
from agentcache.kernels.scatter import rotate_scatter

PAGES, SIZE, HEADS, DIM = 5, 16, 2, 8
Write = Callable[[torch.Tensor, torch.Tensor, int], None]
"""Writes K and V, [parts, page_size, H, D], into one page of a cache."""


def head_major(cache: torch.Tensor, kv: torch.Tensor, page: int) -> None:
    """[H, page_size, 2 D], as vLLM's FlashAttention and CPU backends count."""
    cache[page] = torch.cat([kv[0], kv[1]], dim=-1).transpose(0, 1)


def token_major(cache: torch.Tensor, kv: torch.Tensor, page: int) -> None:
    cache[page] = kv


def packed_in_pairs(cache: torch.Tensor, kv: torch.Tensor, page: int) -> None:
    """As matrix extensions want it: pairs of tokens interleaved."""
    cache[page] = torch.stack([x.reshape(SIZE // 2, 2, -1).transpose(1, 2) for x in kv])


def latent(cache: torch.Tensor, kv: torch.Tensor, page: int) -> None:
    """One part, one head: MLA."""
    cache[page] = kv[0, :, 0]


def contiguous(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.zeros(PAGES, *shape, dtype=dtype)


def transposed(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """A permuted view: what is head-major for the backend lies token-major in memory."""
    return torch.zeros(PAGES, shape[1], shape[0], *shape[2:], dtype=dtype).transpose(1, 2)


def among_layers(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """One layer of three that share their storage page by page."""
    return torch.zeros(PAGES, 3, *shape, dtype=dtype)[:, 1]


CASES = [
    (head_major, contiguous, (HEADS, SIZE, 2 * DIM), (2, SIZE, HEADS, DIM)),
    (head_major, transposed, (HEADS, SIZE, 2 * DIM), (2, SIZE, HEADS, DIM)),
    (head_major, among_layers, (HEADS, SIZE, 2 * DIM), (2, SIZE, HEADS, DIM)),
    (token_major, contiguous, (2, SIZE, HEADS, DIM), (2, SIZE, HEADS, DIM)),
    (token_major, transposed, (2, SIZE, HEADS, DIM), (2, SIZE, HEADS, DIM)),
    (packed_in_pairs, contiguous, (2, SIZE // 2, HEADS * DIM, 2), (2, SIZE, HEADS, DIM)),
    (latent, contiguous, (SIZE, DIM), (1, SIZE, 1, DIM)),
    (latent, among_layers, (SIZE, DIM), (1, SIZE, 1, DIM)),
]


@pytest.mark.parametrize(("write", "make", "page_shape", "shape"), CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_tokens_are_read_and_written_where_the_backend_keeps_them(
    write: Callable[..., None],
    make: Callable[..., torch.Tensor],
    page_shape: tuple[int, ...],
    shape: tuple[int, int, int, int],
    dtype: torch.dtype,
) -> None:
    cache = make(dtype, *page_shape)

    def write_codes(codes: torch.Tensor) -> torch.Tensor:
        write(cache, codes, PAGES - 1)
        return cache[PAGES - 1].reshape(-1)

    layout = learn_layout(write_codes, shape, dtype, cache)
    kv = torch.randn(PAGES, *shape).to(dtype)
    for page in range(PAGES):
        write(cache, kv[page], page)
    tokens = kv.transpose(0, 1).reshape(shape[0], PAGES * SIZE, *shape[2:])  # by slot
    for slots in (torch.arange(20, 37), torch.tensor([79, 0, 17, 17]), torch.arange(80), torch.arange(0)):
        assert torch.equal(gather_tokens(cache, layout, slots), tokens[:, slots])
        assert torch.equal(gather_by_index(cache, layout, slots), tokens[:, slots])

    second = make(dtype, *page_shape)
    for page in range(PAGES):
        write(second, -kv[page], page)
    lengths, slots = [3, 0, 17, 1], torch.randperm(PAGES * SIZE)[:21]
    out = torch.empty(2 * 21 * shape[0] * shape[2] * shape[3], dtype=dtype)
    runs = gather_runs([cache, second], layout, slots, lengths, out)
    for run, own in zip(runs, slots.split(lengths), strict=True):
        assert torch.equal(run, torch.stack([tokens[:, own], -tokens[:, own]], dim=1))
        assert run.is_contiguous()

    slots = torch.tensor([33, 3, 78, 32])
    fresh = torch.randn(shape[0], 4, *shape[2:]).to(dtype)
    angle = torch.randn(4, 1, 2)
    values = fresh[1] if shape[0] == 2 else None
    rotate_scatter(fresh[0], values, angle.cos(), angle.sin(), cache, layout, slots, neox=False, first=4)
    tokens[0, slots] = rotate_keys(fresh[0], angle.cos(), angle.sin(), neox=False, first=4)
    if values is not None:
        tokens[1, slots] = values
    assert torch.equal(gather_tokens(cache, layout, torch.arange(80)), tokens), "and nothing else is written"


@pytest.mark.parametrize(
    "broken",
    [
        lambda kv: torch.cat([kv[0].reshape(-1), kv[0].reshape(-1)]),  # shares elements
        lambda kv: kv.reshape(-1) * 2,  # scales
    ],
)
def test_what_is_no_permutation_is_refused(broken: Callable[[torch.Tensor], torch.Tensor]) -> None:
    pages = torch.zeros(PAGES, 2 * SIZE * HEADS * DIM)
    with pytest.raises(ValueError, match="not a permutation"):
        learn_layout(broken, (2, SIZE, HEADS, DIM), torch.float32, pages)
