"""The latest prompts, so that a new one can be compared with the one it is most like.

The engine identifies each full page of a prompt by a hash over all tokens up to its end, and by the request's page
namespace; the earlier prompt with the longest run of equal pages is found by looking those up. Tokens are compared
after that. Nothing is compared across namespaces: another `cache_salt`'s text is nobody else's business.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from agentcache.entry import Tokens

KEPT_PROMPTS = 256
KEPT_TOKENS = 2 << 20
"""8 MiB: longer ones push earlier ones out."""
_BEFORE, _AFTER = 48, 32
"""Tokens of an excerpt: enough for the line, and for what differs in it."""


@dataclass(frozen=True, slots=True)
class Parting:
    """Where a prompt stopped being what an earlier one was.

    other: the earlier request; common: tokens equal in both
    before: token ids in front of the place; now, was: behind it, in this prompt and in the earlier one
    """

    other: str
    common: int
    before: tuple[int, ...]
    now: tuple[int, ...]
    was: tuple[int, ...]


@dataclass(slots=True, eq=False)
class _Prompt:
    """tokens: int32 [n]; pages: what identifies its full pages; namespace: who may be compared with it"""

    tokens: Tokens
    pages: list[Hashable]
    namespace: str


class Prompts:
    """Bounded: at most `max_prompts`, with at most `max_tokens` together."""

    def __init__(self, max_prompts: int = KEPT_PROMPTS, max_tokens: int = KEPT_TOKENS) -> None:
        self._max_prompts, self._max_tokens = max_prompts, max_tokens
        self._kept: OrderedDict[str, _Prompt] = OrderedDict()
        self._page_of: dict[Hashable, str] = {}
        self._num_tokens = 0

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def num_tokens(self) -> int:
        """Tokens kept, of all prompts."""
        return self._num_tokens

    def parting(self, tokens: Tokens, pages: Sequence[Hashable], namespace: str) -> Parting | None:
        """Where `tokens` part from the earlier prompt they are most like.

        None for the first prompt of a namespace, for a conversation that went on, and for a prompt that was repeated.
        """
        name = next((self._page_of[page] for page in reversed(pages) if page in self._page_of), None)
        if name is None:  # not even a page in common: compare with the one before
            name = next((n for n in reversed(self._kept) if self._kept[n].namespace == namespace), None)
        if name is None:
            return None
        other = self._kept[name].tokens
        common = _common(tokens, other)
        if common in (len(tokens), len(other)):
            return None
        return Parting(
            name,
            common,
            tuple(tokens[max(0, common - _BEFORE) : common].tolist()),
            tuple(tokens[common : common + _AFTER].tolist()),
            tuple(other[common : common + _AFTER].tolist()),
        )

    def keep(self, name: str, tokens: Tokens, pages: Sequence[Hashable], namespace: str) -> None:
        """Remember a request's prompt."""
        self._drop(name)
        if len(tokens) > self._max_tokens:
            return
        self._kept[name] = _Prompt(tokens, list(pages), namespace)
        self._num_tokens += len(tokens)
        for page in pages:
            self._page_of[page] = name
        self._shrink()

    def answered(self, name: str, answer: Tokens, pages: Sequence[Hashable]) -> None:
        """The next turn's prompt goes on with the answer. pages: of prompt and answer together"""
        kept = self._kept.get(name)
        if kept is None:
            return
        kept.tokens = np.concatenate([kept.tokens, answer])
        self._num_tokens += len(answer)
        for page in pages[len(kept.pages) :]:
            self._page_of[page] = name
            kept.pages.append(page)
        self._shrink()

    def _shrink(self) -> None:
        while len(self._kept) > self._max_prompts or self._num_tokens > self._max_tokens:
            self._drop(next(iter(self._kept)))

    def _drop(self, name: str) -> None:
        gone = self._kept.pop(name, None)
        if gone is None:
            return
        self._num_tokens -= len(gone.tokens)
        for page in gone.pages:
            if self._page_of.get(page) == name:
                del self._page_of[page]


def _common(a: Tokens, b: Tokens) -> int:
    """Length of the common beginning."""
    size = min(len(a), len(b))
    equal = a[:size] == b[:size]
    return size if equal.all() else int(np.argmin(equal))
