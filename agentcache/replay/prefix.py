"""vLLM's prefix caching with unlimited memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agentcache.entry import Tokens
from agentcache.replay.outcome import Outcome
from agentcache.replay.prompt import Prompt

PAGE_TOKENS = 16
"""vLLM's default page on GPUs."""


class PageChain:
    """Pages found by their tokens and the page before them, compared token by token."""

    def __init__(self, page_tokens: int = PAGE_TOKENS) -> None:
        self.page_tokens = page_tokens
        self._pages: dict[tuple[int, bytes], int] = {}
        self._owner: list[int] = [-1]

    def hit(self, tokens: Tokens) -> tuple[int, int]:
        """Tokens of `tokens` that pages hold, as vLLM counts them (the last one is always computed); and the
        number of the request that made the last of these pages, -1 if there is none."""
        before = 0
        pages = 0
        for page in self._cut(tokens[: len(tokens) - 1]):
            found = self._pages.get((before, page))
            if found is None:
                break
            before, pages = found, pages + 1
        return pages * self.page_tokens, self._owner[before]

    def add(self, tokens: Tokens, owner: int) -> None:
        """Cache the full pages of `tokens`."""
        before = 0
        for page in self._cut(tokens):
            found = self._pages.get((before, page))
            if found is None:
                found = len(self._owner)
                self._pages[before, page] = found
                self._owner.append(owner)
            before = found

    def _cut(self, tokens: Tokens) -> list[bytes]:
        raw, size = tokens.tobytes(), 4 * self.page_tokens
        return [raw[at : at + size] for at in range(0, len(raw) - size + 1, size)]


@dataclass(frozen=True, slots=True)
class Break:
    """Where a prompt stopped being what an earlier one was.

    request, other: numbers of the two requests; other is -1 for the first
    hit_tokens: reused by pages; common_tokens: equal in both, at least as many
    grown: all of the earlier prompt and its answer stand here, too: a conversation that went on, no break
    """

    request: int
    other: int
    hit_tokens: int
    common_tokens: int
    grown: bool


class Prefix:
    """The `prefix` policy. Remembers what broke each prefix."""

    name = "prefix"

    def __init__(self) -> None:
        self._chain = PageChain()
        self._seen: dict[int, Tokens] = {}
        self._last: dict[str, int] = {}
        self.breaks: list[Break] = []

    def serve(self, prompt: Prompt) -> Outcome:
        hit, owner = self._chain.hit(prompt.tokens)
        if owner < 0:  # nothing to share a page with: compare with the request before
            owner = self._last.get(prompt.request.source, max(self._seen, default=-1))
        common = _common(prompt.tokens, self._seen[owner]) if owner >= 0 else 0
        grown = owner >= 0 and common == len(self._seen[owner])
        self.breaks.append(Break(prompt.request.number, owner, hit, common, grown))
        reused = np.zeros(len(prompt), np.bool_)
        reused[:hit] = True
        return Outcome(reused, np.zeros(len(prompt), np.bool_))

    def answered(self, prompt: Prompt, outcome: Outcome) -> None:
        whole = np.concatenate([prompt.tokens, prompt.generated])
        self._chain.add(whole, prompt.request.number)
        self._seen[prompt.request.number] = whole
        self._last[prompt.request.source] = prompt.request.number


def _common(a: Tokens, b: Tokens) -> int:
    size = min(len(a), len(b))
    differs = np.flatnonzero(a[:size] != b[:size])
    return int(differs[0]) if len(differs) else size
