"""The layout of vLLM's pages, whatever the attention backend.

Every attention backend offers a way to write K/V into pages, none to read them back. A page's layout is a
permutation of its elements, so it is learned once by writing distinct codes and looking where each landed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

WritePage = Callable[[torch.Tensor], torch.Tensor]
"""Writes K and V, [parts, page_size, H, D], into one scratch page and returns that page's elements, flat."""

_CODE_BASE = 8  # small integers are exact in every dtype a page can have, fp8 included


@dataclass(frozen=True, slots=True)
class PageLayout:
    """Where the elements of tokens lie in the pages' storage. Counted in elements, not bytes.

    within: int64 [parts, page_size, H, D], distance from the first element of the page; parts: 2, K and V, or 1
    stride: distance between the first elements of two pages that follow each other
    """

    within: torch.Tensor
    stride: int

    @property
    def page_size(self) -> int:
        return self.within.shape[1]

    def flat(self, pages: torch.Tensor) -> torch.Tensor:
        """`pages` as [num_pages, elements from a page's first to its last]: a view, whatever the strides."""
        extent = sum(
            (size - 1) * step for size, step in zip(pages.shape[1:], pages.stride()[1:], strict=True)
        )
        return pages.as_strided((pages.shape[0], extent + 1), (self.stride, 1))

    def index(self, slots: torch.Tensor) -> torch.Tensor:
        """Where the tokens' elements lie, counted from the first page's first: int64 [parts, n, H, D]."""
        pages = slots // self.page_size * self.stride
        return pages[None, :, None, None] + self.within[:, slots % self.page_size]

    def to(self, device: torch.device) -> PageLayout:
        return PageLayout(self.within.to(device), self.stride)


def learn_layout(
    write: WritePage, shape: tuple[int, int, int, int], dtype: torch.dtype, pages: torch.Tensor
) -> PageLayout:
    """The layout that `write` uses.

    shape: (parts, page_size, H, D)
    pages: [num_pages, ...], one layer's cache, any strides; `write` returns one of them, flattened in logical order
    Raises ValueError when the layout is not a permutation (elements are shared, scaled or padded away).
    """
    num_codes = shape[0] * shape[1] * shape[2] * shape[3]
    codes = torch.arange(num_codes)
    digits: list[torch.Tensor] = []
    scale = 1
    while scale < num_codes:
        digit = (codes // scale) % _CODE_BASE
        digits.append(write(digit.view(shape).to(dtype)).to(torch.float32).round().to(torch.int64))
        scale *= _CODE_BASE
    seen = torch.zeros_like(digits[0])
    for power, digit in enumerate(digits):
        seen += digit * _CODE_BASE**power
    where = torch.full((num_codes,), -1, dtype=torch.int64)
    valid = (seen >= 0) & (seen < num_codes)
    where[seen[valid]] = torch.nonzero(valid).flatten()
    if bool((where < 0).any()) or not torch.equal(seen[where], codes):
        raise ValueError("the page layout of this attention backend is not a permutation of K and V")
    logical = torch.unravel_index(where, pages.shape[1:])
    within = sum(at * step for at, step in zip(logical, pages.stride()[1:], strict=True))
    assert isinstance(within, torch.Tensor)
    return PageLayout(within.view(shape), pages.stride(0))
