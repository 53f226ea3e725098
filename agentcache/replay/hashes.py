"""Hashes of windows of tokens, and a set of them. Machine code: a trace has millions of windows.

Hashes have 64 bits and are believed without comparing tokens: good enough to count with, not to serve from.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from agentcache.entry import Tokens
from agentcache.match.jit import compiled

Hashes = npt.NDArray[np.uint64]

_BASE = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xD6E8FEB86659FD93)
_HALF = np.uint64(32)
_ONE = np.uint64(1)


@compiled
def window_hashes(tokens: Tokens, size: int) -> Hashes:
    """One hash a window of `size` tokens, never 0, uint64 [n - size + 1]."""
    count = max(0, len(tokens) - size + 1)
    hashes = np.empty(count, np.uint64)
    power = _ONE
    for _ in range(size):
        power *= _BASE
    rolling = np.uint64(0)
    for i in range(len(tokens)):
        rolling = rolling * _BASE + np.uint64(tokens[i]) + _ONE
        if i >= size:
            rolling -= (np.uint64(tokens[i - size]) + _ONE) * power
        if i >= size - 1:
            mixed = (rolling ^ (rolling >> _HALF)) * _MIX
            hashes[i - size + 1] = (mixed ^ (mixed >> _HALF)) | _ONE
    return hashes


@compiled
def _find(table: Hashes, value: np.uint64) -> int:
    """Place of `value`, or the free one where it belongs."""
    mask = len(table) - 1
    place = np.int64(value >> _ONE) & mask
    while table[place] != 0 and table[place] != value:
        place = (place + 1) & mask
    return int(place)


@compiled
def _put_all(table: Hashes, values: Hashes) -> int:
    """Enter values; returns how many were new. `table` has room for all of them."""
    new = 0
    for i in range(len(values)):
        place = _find(table, values[i])
        if table[place] == 0:
            table[place] = values[i]
            new += 1
    return new


@compiled
def _has_each(table: Hashes, values: Hashes) -> npt.NDArray[np.bool_]:
    found = np.empty(len(values), np.bool_)
    for i in range(len(values)):
        found[i] = table[_find(table, values[i])] != 0
    return found


class HashSet:
    """A set of hashes that are not 0; at most half full."""

    def __init__(self) -> None:
        self._table = np.zeros(1 << 16, np.uint64)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, values: Hashes) -> None:
        if 2 * (self._count + len(values)) > len(self._table):
            size = len(self._table)
            while 2 * (self._count + len(values)) > size:
                size *= 2
            old, self._table = self._table, np.zeros(size, np.uint64)
            _put_all(self._table, old[old != 0])
        self._count += _put_all(self._table, values)

    def has(self, values: Hashes) -> npt.NDArray[np.bool_]:
        """For each value, whether it is in the set."""
        found: npt.NDArray[np.bool_] = _has_each(self._table, values)
        return found


def warm_up() -> None:
    """Compile everything, so that no request waits for it."""
    seen = HashSet()
    values = window_hashes(np.zeros(4, np.int32), 2)
    seen.add(values)
    seen.has(values)
