"""The engine's paged K/V, seen as tokens: write any run of slots, read any run back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from agentcache.kernels.gather import gather_runs, gather_tokens
from agentcache.kernels.pages import PageLayout, learn_layout
from agentcache.kernels.scatter import rotate_scatter


class UnsupportedPages(Exception):
    """The engine's pages cannot be written or read from outside; the message is a counted fallback reason."""


class PagedKV:
    """All attention layers of one worker.

    layers: layer name to vLLM attention layer, in model order; every layer has the same K/V shape
    num_pages: pages as vLLM's scheduler counts them; a backend may split each into several of its own
    page_size: tokens a (scheduler's) page

    A slot is `page * page_size + offset`, int64. `parts` is 2, K and V, or 1: MLA keeps one latent vector a token, the
    last components of which are rotary, as a key of one head.
    """

    def __init__(self, layers: Mapping[str, Any], num_pages: int, page_size: int) -> None:
        self.names = list(layers)
        self._layers = list(layers.values())
        first = self._layers[0]
        self.latent_rank: int = getattr(first, "kv_lora_rank", 0)
        self.parts = 1 if self.latent_rank else 2
        self.num_kv_heads: int = first.num_kv_heads
        self.head_dim: int = first.head_size
        self.device: torch.device = first.kv_cache.device
        self.dtype: torch.dtype = first.kv_cache.dtype
        for name, layer in layers.items():
            if (layer.num_kv_heads, layer.head_size, layer.kv_cache.dtype, layer.kv_cache.stride()) != (
                self.num_kv_heads,
                self.head_dim,
                self.dtype,
                first.kv_cache.stride(),
            ):
                raise UnsupportedPages(f"layers differ in the shape of their K/V: {name}")
            if not hasattr(layer.impl, "do_kv_cache_update"):
                raise UnsupportedPages(f"{type(layer.impl).__name__} cannot write K/V outside its forward")
        if not self.dtype.is_floating_point or self.dtype.itemsize < 2:
            raise UnsupportedPages("quantised KV cache")
        num_kernel_pages = first.kv_cache.shape[0]
        if num_kernel_pages % num_pages:
            raise UnsupportedPages("the backend's pages do not divide the scheduler's")
        self.num_pages = num_pages
        self.split: int = num_kernel_pages // num_pages
        self.page_size = page_size
        self._kernel_page_size = page_size // self.split
        self._layout = self._learn_layout(num_kernel_pages - 1)

    @property
    def num_layers(self) -> int:
        return len(self._layers)

    @property
    def entry_shape(self) -> tuple[int, int, int, int]:
        """(parts, L, H, D)"""
        return self.parts, self.num_layers, self.num_kv_heads, self.head_dim

    @property
    def token_bytes(self) -> int:
        """One token's K/V, of all layers."""
        return self.parts * self.num_layers * self.num_kv_heads * self.head_dim * self.dtype.itemsize

    @property
    def direct(self) -> bool:
        """Whether `place` is the way to write: a kernel of ours, in one pass. Otherwise `write`, the backend's own."""
        return self.device.type == "cuda" or self.parts == 1

    def block_table(self, pages: Sequence[int]) -> torch.Tensor:
        """The backend's page ids of a request's pages, int32 [pages * split]."""
        ids = torch.tensor(pages, dtype=torch.int32, device=self.device)
        if self.split == 1:
            return ids
        inner = torch.arange(self.split, dtype=torch.int32, device=self.device)
        return (ids[:, None] * self.split + inner).flatten()

    def slots(self, pages: Sequence[int], positions: torch.Tensor) -> torch.Tensor:
        """Slots of some positions of the request that owns `pages`; int64, same shape as `positions`."""
        ids = torch.tensor(pages, dtype=torch.int64, device=self.device)
        positions = positions.to(self.device)
        return ids[positions // self.page_size] * self.page_size + positions % self.page_size

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor) -> None:
        """Write tokens of one layer. keys, values: [n, H, D] in the pages' dtype; slots: int64 [n]."""
        target = self._layers[layer]
        target.impl.do_kv_cache_update(target, keys, values, target.kv_cache, slots)

    def place(
        self,
        layer: int,
        kv: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        slots: torch.Tensor,
        *,
        neox: bool,
        first: int,
    ) -> None:
        """Write tokens of one layer, their keys moved as `rotate_scatter` does.

        kv: [parts, n, H, D] in the pages' dtype; slots: int64 [n]
        """
        values = kv[1] if self.parts == 2 else None
        cache = self._layers[layer].kv_cache
        rotate_scatter(kv[0], values, cos, sin, cache, self._layout, slots, neox=neox, first=first)

    def read(self, slots: torch.Tensor) -> torch.Tensor:
        """K and V of some tokens of all layers: [parts, L, n, H, D] in the pages' dtype, on the CPU, a copy."""
        memory = torch.empty(len(slots) * self.token_bytes, dtype=torch.uint8)
        return self.read_runs(slots, [len(slots)], memory.view(self.dtype))[0]

    def read_runs(self, slots: torch.Tensor, lengths: Sequence[int], out: torch.Tensor) -> list[torch.Tensor]:
        """As `read`, for several runs of tokens at once; what is returned lies in `out`.

        slots: int64, those of all runs, one behind the other; lengths: of the runs
        out: 1-D in the pages' dtype, on the CPU, `token_bytes` for each token
        """
        caches = [layer.kv_cache for layer in self._layers]
        return gather_runs(caches, self._layout, slots, lengths, out)

    def read_layer(self, layer: int, slots: torch.Tensor) -> torch.Tensor:
        """K and V of some tokens of one layer: [parts, n, H, D] in the pages' dtype, on the pages' device, a copy."""
        return gather_tokens(self._layers[layer].kv_cache, self._layout, slots)

    def attention(self, layer: int) -> torch.nn.Module:
        """vLLM's attention module of a layer."""
        module: torch.nn.Module = self._layers[layer]
        return module

    def scale(self, layer: int) -> float:
        """What a layer's attention multiplies the products of queries and keys by."""
        return float(self._layers[layer].impl.scale)

    @contextmanager
    def borrowed(self, pages: range) -> Iterator[None]:
        """Pages that may be overwritten while the context lasts, and are as they were when it ends."""
        own = slice(pages.start * self.split, pages.stop * self.split)
        saved = [layer.kv_cache[own].clone() for layer in self._layers]
        try:
            yield
        finally:
            for layer, before in zip(self._layers, saved, strict=True):
                layer.kv_cache[own] = before

    def _learn_layout(self, scratch: int) -> PageLayout:
        """Use one page, restored afterwards, to learn where the backend puts K and V. Before any request runs."""
        layer = self._layers[0]
        size = self._kernel_page_size
        saved = layer.kv_cache[scratch].clone()
        slots = torch.arange(size, dtype=torch.int64, device=self.device) + scratch * size

        def write(codes: torch.Tensor) -> torch.Tensor:
            codes = codes.to(self.device)
            if self.parts == 2:
                keys, values = (part.contiguous() for part in codes)
                layer.impl.do_kv_cache_update(layer, keys, values, layer.kv_cache, slots)
            else:
                latent = codes[0, :, 0, : self.latent_rank].contiguous()
                rotary = codes[0, :, :, self.latent_rank :].contiguous()
                layer.impl.do_kv_cache_update(latent, rotary, layer.kv_cache, slots, "auto", layer._k_scale)
            cache: torch.Tensor = layer.kv_cache[scratch].reshape(-1)
            return cache.cpu()

        shape = (self.parts, size, self.num_kv_heads, self.head_dim)
        try:
            layout = learn_layout(write, shape, self.dtype, layer.kv_cache)
        except ValueError as error:
            raise UnsupportedPages(str(error)) from error
        finally:
            layer.kv_cache[scratch] = saved
        return layout.to(self.device)
