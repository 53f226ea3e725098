"""What of a prompt is learned: one rule for the engine and for `agentcache replay`.

A run of at least MIN_TOKENS tokens that was not reused is learned. Reused runs of at most JOIN_TOKENS tokens between
two such runs are learned with them: glue around short text comes back with that text, and one long entry has one seam.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from agentcache.entry import INDEX_DOMAIN, EntryInfo
from agentcache.match import MIN_SPAN

Mask = npt.NDArray[np.bool_]
"""One truth value a token."""

MIN_TOKENS = MIN_SPAN
JOIN_TOKENS = 192
PIECE_TOKENS = 512
"""A longer run becomes several entries, each behind those before it: so much is read and evicted at a time."""


def runs_to_learn(reused: Mask, join_tokens: int = JOIN_TOKENS) -> Iterator[tuple[int, int]]:
    """Half-open runs of positions, ascending."""
    edges = np.flatnonzero(np.diff(np.concatenate([[True], reused, [True]]).astype(np.int8)))
    begun: tuple[int, int] | None = None
    for start, stop in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        if begun is not None and start - begun[1] <= join_tokens:
            begun = begun[0], stop
            continue
        if begun is not None and begun[1] - begun[0] >= MIN_TOKENS:
            yield begun
        begun = start, stop
    if begun is not None and begun[1] - begun[0] >= MIN_TOKENS:
        yield begun


def stride_of(info: EntryInfo) -> int:
    """Tokens from one of the entry's fingerprints to the next (`agentcache.match`).

    Code comes back in whole lines, and much of it is stored: a fingerprint every MIN_SPAN tokens finds it. What was
    learned comes back between names and numbers that change, in runs hardly longer than MIN_SPAN, and is little.
    """
    return MIN_SPAN if info.salt == INDEX_DOMAIN else 1


def mask_of(num_tokens: int, runs: Iterable[tuple[int, int]]) -> Mask:
    """True inside the half-open `runs`, which may reach beyond the end."""
    mask = np.zeros(num_tokens, np.bool_)
    for start, stop in runs:
        mask[start:stop] = True
    return mask


def cuts_of(num_tokens: int) -> tuple[int, ...]:
    """Where a run of `num_tokens` is cut into entries: equal pieces of at most PIECE_TOKENS."""
    pieces = -(-num_tokens // PIECE_TOKENS)
    return tuple(num_tokens * number // pieces for number in range(pieces + 1))
