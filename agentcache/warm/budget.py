"""How many bytes of entries the worker keeps, and what goes when something more urgent needs the room."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_DEAD = 1000
"""Rank of entries that nothing wants any more: they stay for an undo while there is room."""


@dataclass(slots=True)
class _Held:
    tokens: int
    rank: int


class Budget:
    """An account of entries, in tokens. It decides; whoever uses it has the engine delete what it says.

    limit_bytes: most bytes of entries that are held; token_bytes: what a token's K/V take
    """

    def __init__(self, limit_bytes: int, token_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.token_bytes = max(1, token_bytes)
        self._held: dict[str, _Held] = {}  # the oldest first
        self._tokens = 0

    @property
    def used_bytes(self) -> int:
        return self._tokens * self.token_bytes

    def __contains__(self, entry: str) -> bool:
        return entry in self._held

    def hold(self, entries: Mapping[str, int], rank: int, may_drop: bool = True) -> list[str] | None:
        """Take `entries` (id to tokens) into the account; rank: smaller is more worth keeping.

        Returns the entries that must go for them, of larger rank all of them: the largest first, of those the oldest.
        None, and nothing is changed, if that does not make enough room, or if it needs some to go and none may.
        Held ones get the better of both ranks.
        """
        fresh = {entry: tokens for entry, tokens in entries.items() if entry not in self._held}
        short = self._tokens + sum(fresh.values()) - self.limit_bytes // self.token_bytes
        victims = self._victims(short, rank, entries) if fresh and short > 0 else []
        if victims is None or (victims and not may_drop):
            return None
        self.forget(victims)
        for entry, tokens in entries.items():
            held = self._held.setdefault(entry, _Held(tokens, rank))
            held.rank = min(held.rank, rank)
        self._tokens += sum(fresh.values())
        return victims

    def demote(self, entries: Iterable[str]) -> bool:
        """Nothing wants these any more: they are the first to go, and stay until then. Whether any of them is held."""
        found = False
        for entry in entries:
            held = self._held.pop(entry, None)
            if held is not None:
                found = True
                self._held[entry] = _Held(
                    held.tokens, _DEAD
                )  # dead from now on: behind those that died before
        return found

    def forget(self, entries: Iterable[str]) -> None:
        """These are gone."""
        for entry in entries:
            held = self._held.pop(entry, None)
            if held is not None:
                self._tokens -= held.tokens

    def _victims(self, short: int, rank: int, wanted: Mapping[str, int]) -> list[str] | None:
        candidates = [
            (held.rank, entry, held.tokens)
            for entry, held in self._held.items()
            if held.rank > rank and entry not in wanted
        ]
        candidates.sort(key=lambda one: -one[0])  # stable: the oldest of a rank first
        victims = []
        for _, entry, tokens in candidates:
            if short <= 0:
                break
            victims.append(entry)
            short -= tokens
        return victims if short <= 0 else None
