"""Which units of the token arena are in use.

A unit holds MIN_SPAN tokens. An entry's units are consecutive: its tokens fill them from the first on, so that
comparing them is a walk through memory, and its k-th fingerprint belongs to its k-th unit: neither stores where the
other is.
"""

from __future__ import annotations

from bisect import bisect_left, insort


class Arena:
    """Hands out runs of consecutive units and takes them back; free neighbours are joined at once.

    Smallest fitting run first, split where larger. Operations cost O(log of the number of distinct sizes).
    """

    def __init__(self) -> None:
        self.top = 0  # no unit from here on is in use
        self._size: dict[int, int] = {}  # start of a free run -> its size
        self._start: dict[int, int] = {}  # end of a free run -> its start
        self._of_size: dict[int, dict[int, None]] = {}  # size -> starts, in order of release
        self._sizes: list[int] = []  # keys of _of_size, ascending

    @property
    def num_free(self) -> int:
        """Free units below `top`."""
        return sum(self._size.values())

    def take(self, size: int) -> int:
        """First unit of `size` free ones; grows `top` if no free run is large enough."""
        place = bisect_left(self._sizes, size)
        if place == len(self._sizes):
            self.top += size
            return self.top - size
        found = self._sizes[place]
        start = next(iter(self._of_size[found]))
        self._drop(start)
        if found > size:
            self._keep(start + size, found - size)
        return start

    def give(self, start: int, size: int) -> None:
        """Take back `size` units from `start` on, as `take` handed them out."""
        left = self._start.get(start)
        if left is not None:
            size += self._drop(left)
            start = left
        if start + size in self._size:
            size += self._drop(start + size)
        if start + size == self.top:
            self.top = start
        else:
            self._keep(start, size)

    def _keep(self, start: int, size: int) -> None:
        self._size[start] = size
        self._start[start + size] = start
        if size not in self._of_size:
            self._of_size[size] = {}
            insort(self._sizes, size)
        self._of_size[size][start] = None

    def _drop(self, start: int) -> int:
        size = self._size.pop(start)
        del self._start[start + size]
        del self._of_size[size][start]
        if not self._of_size[size]:
            del self._of_size[size]
            self._sizes.pop(bisect_left(self._sizes, size))
        return size
