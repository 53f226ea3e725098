"""Arrays that grow without being copied.

A matcher of a million blocks holds a gigabyte; a copy of that would hold up the scheduler for seconds.
Where the system can (Linux), growing moves pages to other addresses and touches none of them.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import numpy.typing as npt


class Growing:
    """One array whose first dimension grows. Rows never written are zero.

    `array` is replaced when it grows; as long as somebody holds the one before, growing copies.
    """

    def __init__(self, dtype: npt.DTypeLike, width: int = 1) -> None:
        self._dtype = np.dtype(dtype)
        self._width = width
        self._map = _anonymous(self._bytes(1))
        self.array = self._view(0)

    def __len__(self) -> int:
        return len(self.array)

    def reserve(self, length: int, exactly: bool = False) -> None:
        """Have at least `length` rows; when it grows, `exactly` those, or a sixteenth more.

        Raises OSError where there is no memory; the array is as before then.
        """
        have = len(self.array)
        if length <= have:
            return
        wanted = length if exactly else length + length // 16 + 64
        del self.array
        try:
            self._enlarge(self._bytes(have), self._bytes(wanted))
            have = wanted
        finally:
            self.array = self._view(have)

    def _enlarge(self, have: int, wanted: int) -> None:
        try:
            self._map.resize(wanted)
        except (BufferError, OSError, SystemError):  # in use, or a system without mremap
            larger = _anonymous(wanted)
            memoryview(larger)[:have] = memoryview(self._map)[:have]
            self._map = larger

    def _bytes(self, length: int) -> int:
        return length * self._width * self._dtype.itemsize

    def _view(self, length: int) -> npt.NDArray[Any]:
        flat = (
            np.frombuffer(self._map, self._dtype, length * self._width)
            if length
            else np.empty(0, self._dtype)
        )
        return flat if self._width == 1 else flat.reshape(length, self._width)


def _anonymous(num_bytes: int) -> mmap.mmap:
    if not hasattr(mmap, "MAP_PRIVATE"):  # Windows: private by nature
        return mmap.mmap(-1, num_bytes)
    return mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
