"""Which entry goes first when a tier is full."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

SAMPLE = 64
"""How many of the least recently used entries a tier shows its policy at a time."""
ATTENTION_TOKENS = 8192
"""So many tokens to its left double what a token costs to compute: attention grows with them, the rest does not."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """What a policy may know of an entry. Times are those of the store's clock, which never runs back.

    weight: how much more, or less, likely it is to be read than its uses say: 1, or what `EntryStore.weigh` was told
    """

    id: str
    size_bytes: int
    num_tokens: int
    position: int
    created: float
    last_used: float
    uses: int
    weight: float = 1.0


class EvictionPolicy(Protocol):
    """Gives every entry a worth; the least worthy of a tier's oldest `SAMPLE` entries is evicted first."""

    def worth(self, candidate: Candidate, now: float) -> float: ...


class LeastRecentlyUsed:
    """An entry is worth as much as its last use is recent."""

    def worth(self, candidate: Candidate, now: float) -> float:
        return candidate.last_used


class ExpectedValue:
    """What keeping an entry is expected to save, for each byte it takes.

    chance of a use soon   (uses + 1) / seconds since the last one: often and lately used; scale-free, so that seconds
                           and weeks are told apart alike
    times weight           still in an index, and important there, or not
    times prefill cost     its tokens, more the more stood before them
    over bytes             of its file
    """

    def worth(self, candidate: Candidate, now: float) -> float:
        chance = candidate.weight * (candidate.uses + 1) / (1.0 + max(0.0, now - candidate.last_used))
        before = candidate.position + candidate.num_tokens / 2
        cost = candidate.num_tokens * (1.0 + before / ATTENTION_TOKENS)
        return chance * cost / candidate.size_bytes
