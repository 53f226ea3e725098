"""Learning a page's layout and reading tokens through it, for layouts that real backends have."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from agentcache.kernels.pages import gather_tokens, learn_layout

SIZE, HEADS, DIM = 16, 2, 8
Write = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def head_major(k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.stack([k.transpose(0, 1), v.transpose(0, 1)], dim=-2).reshape(-1)


def token_major(k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.stack([k, v]).reshape(-1)


def packed_in_pairs(k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """As matrix extensions want it: pairs of tokens interleaved."""
    return torch.cat([x.view(SIZE // 2, 2, -1).transpose(1, 2).reshape(-1) for x in (k, v)])


@pytest.mark.parametrize("write", [head_major, token_major, packed_in_pairs])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_tokens_come_back_as_they_were_written(write: Write, dtype: torch.dtype) -> None:
    layout = learn_layout(write, (SIZE, HEADS, DIM), dtype)
    k, v = torch.randn(2, 4, SIZE, HEADS, DIM).to(dtype)
    pages = torch.stack([write(k[page], v[page]) for page in range(4)])
    for slots in (torch.arange(20, 37), torch.tensor([63, 0, 17, 17]), torch.arange(64)):
        read = gather_tokens(pages, layout, slots)
        assert torch.equal(read[0], k.reshape(-1, HEADS, DIM)[slots])
        assert torch.equal(read[1], v.reshape(-1, HEADS, DIM)[slots])


def test_a_layout_that_shares_elements_is_refused() -> None:
    with pytest.raises(ValueError, match="not a permutation"):
        learn_layout(
            lambda k, v: torch.cat([k.reshape(-1), k.reshape(-1)]), (SIZE, HEADS, DIM), torch.float32
        )


def test_a_layout_that_scales_is_refused() -> None:
    with pytest.raises(ValueError, match="not a permutation"):
        learn_layout(lambda k, v: token_major(k, v) * 2, (SIZE, HEADS, DIM), torch.float32)
