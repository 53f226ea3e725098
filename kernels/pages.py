"""Reading K/V out of vLLM's pages, whatever their memory layout.

Every attention backend offers a way to write K/V into pages, none to read them back. A page's layout is a
permutation of its elements, so it is learned once by writing distinct codes and looking where each landed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

WritePage = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Writes K and V, both [page_size, H, D], into one scratch page and returns that page's elements, flat."""

_CODE_BASE = 8  # small integers are exact in every dtype a page can have, fp8 included


def learn_layout(write: WritePage, shape: tuple[int, int, int], dtype: torch.dtype) -> torch.Tensor:
    """Where each element of K and V lies in a page.

    shape: (page_size, H, D)
    Returns int64 [2, page_size, H, D]: index into the flat page.
    Raises ValueError when the layout is not a permutation (elements are shared, scaled or padded away).
    """
    num_codes = 2 * shape[0] * shape[1] * shape[2]
    codes = torch.arange(num_codes)
    digits: list[torch.Tensor] = []
    scale = 1
    while scale < num_codes:
        digit = (codes // scale) % _CODE_BASE
        k, v = digit.view(2, *shape).to(dtype)
        digits.append(write(k.contiguous(), v.contiguous()).to(torch.float32).round().to(torch.int64))
        scale *= _CODE_BASE
    seen = torch.zeros_like(digits[0])
    for power, digit in enumerate(digits):
        seen += digit * _CODE_BASE**power
    where = torch.full((num_codes,), -1, dtype=torch.int64)
    valid = (seen >= 0) & (seen < num_codes)
    where[seen[valid]] = torch.nonzero(valid).flatten()
    if bool((where < 0).any()) or not torch.equal(seen[where], codes):
        raise ValueError("the page layout of this attention backend is not a permutation of K and V")
    return where.view(2, *shape)


def gather_tokens(pages: torch.Tensor, layout: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """K and V of some tokens of one layer.

    pages: [num_pages, ...], the layer's cache; layout: from `learn_layout`; slots: int64 [n], page * page_size + offset
    Returns [2, n, H, D] in the pages' dtype, a copy.
    """
    page_size = layout.shape[1]
    flat = pages.reshape(pages.shape[0], -1)
    first, last = int(slots.min()) // page_size, int(slots.max()) // page_size
    if last - first < 2 * (len(slots) // page_size + 2):  # close together: index once into a narrow window
        flat, page_of = flat[first : last + 1], slots // page_size - first
    else:
        page_of = slots // page_size
    inside = layout[:, slots % page_size]  # [2, n, H, D]
    return flat[page_of[None, :, None, None], inside]
