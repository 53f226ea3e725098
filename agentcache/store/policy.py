"""Which entry goes first when a tier is full."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

SAMPLE = 64
"""How many of the least recently used entries a tier shows its policy at a time."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """What a policy may know of an entry. Times are those of the store's clock, which never runs back."""

    id: str
    size_bytes: int
    num_tokens: int
    created: float
    last_used: float
    uses: int


class EvictionPolicy(Protocol):
    """Gives every entry a worth; the least worthy of a tier's oldest `SAMPLE` entries is evicted first."""

    def worth(self, candidate: Candidate) -> float: ...


class LeastRecentlyUsed:
    """An entry is worth as much as its last use is recent."""

    def worth(self, candidate: Candidate) -> float:
        return candidate.last_used
