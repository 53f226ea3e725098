"""Made-up streams of entries, for tests and benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from agentcache.entry import EntryInfo, Tokens, as_tokens, entries_of_stream

Ids: TypeAlias = Sequence[int] | npt.NDArray[np.integer[Any]]
"""Token ids of any integer type."""


def stream(blocks: Sequence[Ids], salt: str = "") -> list[EntryInfo]:
    """Entries of blocks computed one behind the other, as the blocks of a file are."""
    cuts = np.cumsum([0, *(len(block) for block in blocks)])
    return entries_of_stream("model", salt, join(*blocks), cuts.tolist())


def alone(block: Ids, salt: str = "") -> EntryInfo:
    """The entry of a block computed behind nothing."""
    return stream([block], salt)[0]


def join(*parts: Ids | EntryInfo) -> Tokens:
    """A prompt of entries' tokens and other tokens."""
    arrays = [as_tokens(part.tokens if isinstance(part, EntryInfo) else part) for part in parts]
    return np.concatenate(arrays) if arrays else as_tokens([])
