"""Learned spans: text that is no source block, kept because it will likely come again.

Nothing is taken from a live prompt. What a request had to compute becomes entries that are computed by themselves, in
idle time, under these rules:

1. A run of at least MIN_TOKENS tokens that was not reused is learned. Reused runs of at most JOIN_TOKENS tokens
   between two such runs are learned with them: glue around short text comes back with that text, and one long entry
   has one seam.
2. A generated answer is learned as a text by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from agentcache.entry import EntryInfo, Tokens, entries_of_stream
from agentcache.match import MIN_SPAN
from agentcache.replay.outcome import Mask, Origin
from agentcache.replay.prompt import Prompt
from agentcache.replay.source import MODEL, Known

OWN_DOMAIN = "salt:"
"""Domain of requests without a `cache_salt`."""
MIN_TOKENS = MIN_SPAN
JOIN_TOKENS = 192


class Learner:
    """Says which entries a request leaves behind. encode: tokens of a text by itself."""

    def __init__(self, encode: Callable[[str], Tokens], join_tokens: int = JOIN_TOKENS) -> None:
        self._encode = encode
        self._join_tokens = join_tokens

    def learned(self, prompt: Prompt, reused: Mask) -> Iterator[Known]:
        """Entries to compute once the request is answered."""
        number = prompt.request.number
        for start, stop in runs_to_learn(reused, self._join_tokens):
            excerpt = " ".join(prompt.excerpt(start, stop).split())[:40]
            label = f'"{excerpt}" (request {number})'
            yield Known(_alone(prompt.tokens[start:stop].copy()), Origin.LEARNED, label)
        if prompt.answer:
            tokens = self._encode(prompt.answer)
            if len(tokens) >= MIN_TOKENS:
                yield Known(_alone(tokens), Origin.ANSWER, f"answer of request {number}")


def runs_to_learn(reused: Mask, join_tokens: int = JOIN_TOKENS) -> Iterator[tuple[int, int]]:
    """Half-open runs of positions, ascending: rule 1."""
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


def _alone(tokens: Tokens) -> EntryInfo:
    return entries_of_stream(MODEL, OWN_DOMAIN, tokens, [0, len(tokens)])[0]
