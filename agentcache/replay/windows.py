"""What text alone would allow: windows of tokens that were seen before, whatever stands around them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from agentcache.entry import Tokens
from agentcache.replay.hashes import HashSet, window_hashes
from agentcache.replay.outcome import Mask, Outcome
from agentcache.replay.prompt import Prompt


class UpperBound:
    """The `upper` policy: any window of 16 tokens that was indexed, sent or generated before."""

    name = "upper"

    def __init__(self, size: int = 16) -> None:
        self._size = size
        self._seen = HashSet()

    def know(self, tokens: Tokens) -> None:
        """Text that may be reused from now on."""
        self._seen.add(window_hashes(tokens, self._size))

    def serve(self, prompt: Prompt) -> Outcome:
        found = self._seen.has(window_hashes(prompt.tokens, self._size))
        return Outcome(
            covered(np.flatnonzero(found), self._size, len(prompt)), np.zeros(len(prompt), np.bool_)
        )

    def answered(self, prompt: Prompt, outcome: Outcome) -> None:
        self.know(np.concatenate([prompt.tokens, prompt.generated]))


def covered(starts: npt.NDArray[np.int64], size: int, length: int) -> Mask:
    """Positions inside a window of `size` that begins at one of `starts`."""
    edges = np.zeros(length + 1, np.int64)
    np.add.at(edges, starts, 1)
    np.add.at(edges, starts + size, -1)
    return np.cumsum(edges[:-1]) > 0
