"""The RAM tier: tensors by id, within a budget. Its user holds a lock; it has none of its own."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from itertools import islice

import torch

from agentcache.entry import EntryInfo
from agentcache.store.policy import SAMPLE, Candidate, EvictionPolicy


@dataclass(slots=True)
class Resident:
    """An entry in RAM. `pinned`: being written below, must stay; `durable`: a lower tier holds it too."""

    info: EntryInfo
    kv: torch.Tensor
    created: float
    last_used: float
    uses: int
    pinned: bool
    durable: bool


class RamTier:
    """At most `budget_bytes` of K/V. Tensors are handed out as they are: readers must not write to them."""

    def __init__(self, budget_bytes: int, policy: EvictionPolicy) -> None:
        self.budget_bytes = budget_bytes
        self.num_bytes = 0
        self._pinned_bytes = 0
        self._policy = policy
        self._residents: OrderedDict[str, Resident] = OrderedDict()

    def __len__(self) -> int:
        return len(self._residents)

    def __contains__(self, id: str) -> bool:
        return id in self._residents

    def peek(self, id: str) -> Resident | None:
        """The resident, without counting it as used."""
        return self._residents.get(id)

    def residents(self) -> list[Resident]:
        return list(self._residents.values())

    def get(self, id: str, now: float) -> torch.Tensor | None:
        resident = self._residents.get(id)
        if resident is None:
            return None
        resident.last_used = now
        resident.uses += 1
        self._residents.move_to_end(id)
        return resident.kv

    def make_room(self, size_bytes: int) -> list[Resident] | None:
        """Evict until `size_bytes` fit, and return what went; None (and nothing went) if they cannot now."""
        if self._pinned_bytes + size_bytes > self.budget_bytes:
            return None
        evicted: list[Resident] = []
        while self.num_bytes + size_bytes > self.budget_bytes:
            free = (resident for resident in self._residents.values() if not resident.pinned)
            victim = min(islice(free, SAMPLE), key=lambda r: self._policy.worth(_candidate(r)))
            evicted.append(victim)
            self.drop(victim.info.id)
        return evicted

    def add(self, resident: Resident) -> None:
        """Room must have been made."""
        self._residents[resident.info.id] = resident
        self.num_bytes += resident.kv.nbytes
        self._pinned_bytes += resident.kv.nbytes if resident.pinned else 0
        assert self.num_bytes <= self.budget_bytes

    def drop(self, id: str) -> Resident | None:
        resident = self._residents.pop(id, None)
        if resident is not None:
            self.num_bytes -= resident.kv.nbytes
            self._pinned_bytes -= resident.kv.nbytes if resident.pinned else 0
        return resident

    def unpin(self, resident: Resident, durable: bool) -> None:
        """The write of `resident` ended, well (`durable`) or not."""
        if resident.pinned and self._residents.get(resident.info.id) is resident:
            self._pinned_bytes -= resident.kv.nbytes
        resident.pinned = False
        resident.durable = durable


def _candidate(resident: Resident) -> Candidate:
    info = resident.info
    return Candidate(
        info.id, resident.kv.nbytes, info.num_tokens, resident.created, resident.last_used, resident.uses
    )
