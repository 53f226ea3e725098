"""What the store asks of a tier below RAM. The disk is one; remote tiers come in the same shape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch

from agentcache.entry import EntryInfo
from agentcache.store.stats import TierStats


class Tier(Protocol):
    """Holds entries of one model durably. Every method may be called from any thread."""

    name: str

    def infos(self) -> Iterator[EntryInfo]:
        """Every entry in service."""

    def read(self, id: str) -> tuple[EntryInfo, torch.Tensor]:
        """The verified entry. EntryMissing, or EntryCorrupt once it is out of service."""

    def write(self, info: EntryInfo, kv: torch.Tensor) -> list[str]:
        """Make an entry durable, evicting first; ids of this model that were evicted. Or WriteRefused.

        Idempotent. Evicted ids of a refused write are reported by the exception's `evicted`.
        """

    def missing(self, ids: Sequence[str]) -> list[str]:
        """Those of `ids` that are not here, in their order."""

    def remove(self, id: str) -> bool:
        """Delete an entry; whether it was here."""

    def tick(self) -> None:
        """Called every few seconds by the writer thread: a chance to note recent uses."""

    def stats(self) -> TierStats: ...

    def close(self) -> None: ...
