"""Where entries would lie if RAM and disk were finite: least recently used goes first, as in the store."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class TierUse:
    """Tokens of spans read from each tier, and entries that went for good. Budgets and sizes are in bytes."""

    ram_budget: int
    disk_budget: int
    bytes_per_token: int
    ram_bytes: int = 0
    disk_bytes: int = 0
    tokens_from_ram: int = 0
    tokens_from_disk: int = 0
    evicted_entries: int = 0


class Tiers:
    """Entries in RAM and on disk. What leaves the disk is gone; what leaves RAM is still on disk."""

    def __init__(self, ram_budget: int, disk_budget: int, bytes_per_token: int) -> None:
        self.use = TierUse(ram_budget, disk_budget, bytes_per_token)
        self._ram: OrderedDict[str, int] = OrderedDict()
        self._disk: OrderedDict[str, int] = OrderedDict()

    def add(self, entry_id: str, num_tokens: int) -> list[str]:
        """A new entry. Returns the ids of those that are gone for it, its own if it does not fit at all."""
        if entry_id in self._disk:
            self._touch(entry_id)
            return []
        size = num_tokens * self.use.bytes_per_token
        gone: list[str] = []
        if size > self.use.disk_budget:
            return [entry_id]
        while self.use.disk_bytes + size > self.use.disk_budget:
            gone.append(self._drop_oldest())
        self._disk[entry_id] = size
        self.use.disk_bytes += size
        self._keep_in_ram(entry_id, size)
        return gone

    def read(self, spans: Iterable[tuple[str, int]]) -> None:
        """Entries that a plan uses, and how many tokens of each."""
        for entry_id, num_tokens in spans:
            if entry_id in self._ram:
                self.use.tokens_from_ram += num_tokens
            else:
                self.use.tokens_from_disk += num_tokens
            self._touch(entry_id)

    def _touch(self, entry_id: str) -> None:
        self._disk.move_to_end(entry_id)
        if entry_id in self._ram:
            self._ram.move_to_end(entry_id)
        else:
            self._keep_in_ram(entry_id, self._disk[entry_id])

    def _keep_in_ram(self, entry_id: str, size: int) -> None:
        if size > self.use.ram_budget:
            return
        while self.use.ram_bytes + size > self.use.ram_budget:
            _, freed = self._ram.popitem(last=False)
            self.use.ram_bytes -= freed
        self._ram[entry_id] = size
        self.use.ram_bytes += size

    def _drop_oldest(self) -> str:
        entry_id, size = self._disk.popitem(last=False)
        self.use.disk_bytes -= size
        self.use.ram_bytes -= self._ram.pop(entry_id, 0)
        self.use.evicted_entries += 1
        return entry_id
