"""Learned spans: text that is no source block, kept because it will likely come again.

Nothing is taken from a live prompt. What a request had to compute (`agentcache.learn.runs`), and a generated answer,
become entries that are computed by themselves, in idle time, as the engine's learner has them computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from agentcache.entry import EntryInfo, Tokens, entries_of_stream
from agentcache.learn.runs import JOIN_TOKENS, MIN_TOKENS, cuts_of, runs_to_learn
from agentcache.replay.outcome import Mask, Origin
from agentcache.replay.prompt import Prompt
from agentcache.replay.source import MODEL, Known

OWN_DOMAIN = "salt:"
"""Domain of requests without a `cache_salt`."""


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
            for info in _entries(prompt.tokens[start:stop].copy()):
                yield Known(info, Origin.LEARNED, label)
        if prompt.answer:
            tokens = self._encode(prompt.answer)
            if len(tokens) >= MIN_TOKENS:
                for info in _entries(tokens):
                    yield Known(info, Origin.ANSWER, f"answer of request {number}")


def _entries(tokens: Tokens) -> list[EntryInfo]:
    return entries_of_stream(MODEL, OWN_DOMAIN, tokens, cuts_of(len(tokens)))
