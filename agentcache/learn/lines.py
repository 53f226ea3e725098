"""Which lines stand in which indexed file: enough to recognise a file in whatever way a client shows it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

MIN_LINE = 12
"""Characters, spaces around it left out, of a line that says something: `return x` stands in every repository."""


class KnownLines:
    """Lines of files by hash, 12 bytes each. A line that several files have is the first one's.

    files: path and bytes of each
    """

    def __init__(self, files: Iterable[tuple[str, bytes]]) -> None:
        self.paths: list[str] = []
        hashes: list[int] = []
        owners: list[int] = []
        for path, data in files:
            mine = {
                _hash(line) for line in data.decode(errors="replace").split("\n") if _says_something(line)
            }
            hashes += mine
            owners += [len(self.paths)] * len(mine)
            self.paths.append(path)
        found = np.array(hashes, np.uint64)
        order = np.argsort(found, kind="stable")
        self._hashes: npt.NDArray[np.uint64] = found[order]
        self._owners: npt.NDArray[np.int32] = np.array(owners, np.int32)[order]

    def __len__(self) -> int:
        return len(self._hashes)

    def __contains__(self, line: object) -> bool:
        return isinstance(line, str) and self.path_of(line) is not None

    def path_of(self, line: str) -> str | None:
        """The file that has this line, without its end; None if none has, or if it says too little to tell."""
        if not _says_something(line) or not len(self._hashes):
            return None
        wanted = np.uint64(_hash(line))
        place = int(np.searchsorted(self._hashes, wanted))
        if place == len(self._hashes) or self._hashes[place] != wanted:
            return None
        return self.paths[int(self._owners[place])]


def _says_something(line: str) -> bool:
    return len(line.strip()) >= MIN_LINE


def _hash(line: str) -> int:
    return xxh3_64_intdigest(line.encode(errors="replace"))
