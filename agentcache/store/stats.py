"""Counters of the store, as plain values to print or serve."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from threading import Lock
from typing import Any


@dataclass(frozen=True, slots=True)
class TierStats:
    """One tier, now. `bytes` never exceeds `budget_bytes`; files being written are in it.

    entries and bytes of the disk tier are those of the whole root, all models together, as is its budget;
    hits, misses and evictions count what this process did since it opened the store.
    """

    entries: int
    bytes: int
    budget_bytes: int
    hits: int
    misses: int
    evictions: int


@dataclass(frozen=True, slots=True)
class StoreStats:
    """`entries`: servable entries of this model on disk; `pending`: put, but not durable yet."""

    tiers: dict[str, TierStats]
    entries: int
    pending: int
    errors: dict[str, int]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Counts:
    """Named counters that several threads add to."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._counter: Counter[str] = Counter()

    def add(self, name: str, amount: int = 1) -> None:
        with self._lock:
            self._counter[name] += amount

    def __getitem__(self, name: str) -> int:
        with self._lock:
            return self._counter[name]

    def to_dict(self) -> dict[str, int]:
        with self._lock:
            return {name: n for name, n in sorted(self._counter.items()) if n}
