"""Memory for what is read from disk, used again and again: fresh memory costs as much time as the reading."""

from __future__ import annotations

import mmap
import weakref
from collections import deque
from contextlib import suppress

import numpy as np
import torch

_LARGE = 1 << 20
"""Below this the C library's allocator uses memory again by itself."""
_KEPT = 8
"""Buffers that wait to be used again, at most."""
_KEPT_BYTES = 64 << 20

_free: deque[mmap.mmap] = deque()  # its methods are atomic: no lock that a garbage collection could meet


def buffer(size: int) -> torch.Tensor:
    """uint8 [size], not zeroed. Its memory is used again once nothing refers to it any more."""
    if size < _LARGE:
        return torch.empty(size, dtype=torch.uint8)
    memory = _taken(size)
    array = np.frombuffer(memory, np.uint8, size)
    weakref.finalize(array, _give_back, memory).atexit = False
    return torch.from_numpy(array)


def _taken(size: int) -> mmap.mmap:
    for _ in range(len(_free)):
        with suppress(IndexError):
            memory = _free.popleft()
            if size <= len(memory) <= 2 * size:
                return memory
            _free.append(memory)
    memory = mmap.mmap(-1, -(-size // _LARGE) * _LARGE)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _give_back(memory: mmap.mmap) -> None:
    if len(memory) <= _KEPT_BYTES // 2:
        _free.append(memory)
        while len(_free) > _KEPT or sum(map(len, list(_free))) > _KEPT_BYTES:
            _free.popleft()
