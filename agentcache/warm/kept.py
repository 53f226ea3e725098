"""Which entries stand for what: from entry ids to files and blocks, and back, for one index."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping

Owner = tuple[str, str]
"""A path, and what of it: "" is the file front to back, an id a block alone."""


class Kept:
    """The entries that were made or found for each owner.

    An entry can have several: equal text at equal places of two files. It is dead when the last one lets go.
    """

    def __init__(self) -> None:
        self._of: dict[Owner, dict[str, tuple[str, ...]]] = {}
        self._owners: defaultdict[str, set[Owner]] = defaultdict(set)
        self._warm: Counter[str] = Counter()  # block id to entries it has

    @property
    def warm_blocks(self) -> set[str]:
        """Ids of blocks that have an entry."""
        return set(self._warm)

    def add(self, owner: Owner, entries: Mapping[str, tuple[str, ...]]) -> None:
        """`owner` has these, too: entry ids to the blocks they cover."""
        held = self._of.setdefault(owner, {})
        for entry, blocks in entries.items():
            if entry not in held:
                held[entry] = blocks
                self._owners[entry].add(owner)
                self._warm.update(blocks)

    def replace(self, owner: Owner, entries: Mapping[str, tuple[str, ...]]) -> list[str]:
        """`owner` has these and nothing else. Returns the entries that are dead."""
        gone = [entry for entry in self._of.get(owner, {}) if entry not in entries]
        self.add(owner, entries)
        return [entry for entry in gone if self._let_go(owner, entry)]

    def forget_path(self, path: str) -> list[str]:
        """The file is gone. Returns the entries that are dead."""
        dead = []
        for owner in [owner for owner in self._of if owner[0] == path]:
            dead += self.replace(owner, {})
            del self._of[owner]
        return dead

    def keep_blocks(self, path: str, blocks: Container[str]) -> list[str]:
        """Of the file's blocks alone only these exist. Returns the entries that are dead."""
        dead = []
        for owner in [
            owner for owner in self._of if owner[0] == path and owner[1] and owner[1] not in blocks
        ]:
            dead += self.replace(owner, {})
            del self._of[owner]
        return dead

    def lost(self, entries: Iterable[str]) -> None:
        """These do not exist any more."""
        for entry in entries:
            for owner in list(self._owners.get(entry, ())):
                self._let_go(owner, entry)

    def has(self, owner: Owner) -> bool:
        return bool(self._of.get(owner))

    def owners(self, entry: str) -> set[Owner]:
        """Whose it is; empty if it is nobody's here."""
        return set(self._owners.get(entry, ()))

    def blocks(self, owner: Owner, entry: str) -> tuple[str, ...]:
        return self._of.get(owner, {}).get(entry, ())

    def count(self, owner: Owner) -> int:
        """Entries of an owner."""
        return len(self._of.get(owner, {}))

    def _let_go(self, owner: Owner, entry: str) -> bool:
        """Whether it was the last owner."""
        blocks = self._of[owner].pop(entry)
        self._warm.subtract(blocks)
        for block in blocks:
            if self._warm[block] <= 0:
                del self._warm[block]
        self._owners[entry].discard(owner)
        if self._owners[entry]:
            return False
        del self._owners[entry]
        return True
