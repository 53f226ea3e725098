"""The store seen from outside, all models at once: look, verify, collect, clear. No engine, no budgets."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agentcache.errors import UsageError
from agentcache.store.catalog import Catalog, Victim
from agentcache.store.errors import EntryCorrupt, reason_of
from agentcache.store.evict import make_room, unlinked
from agentcache.store.files import read_file
from agentcache.store.format import UnknownFormat
from agentcache.store.layout import EntryLayout
from agentcache.store.opening import open_catalog
from agentcache.store.policy import SAMPLE, LeastRecentlyUsed
from agentcache.store.ram import ram_folder
from agentcache.store.reconcile import Reconciled, entry_files, reconcile
from agentcache.store.root import Root, salt_folder
from agentcache.store.rows import Row
from agentcache.store.stats import Counts


@dataclass(frozen=True, slots=True)
class ModelUse:
    """What one model takes. `token_bytes`: K/V bytes a token."""

    model: str
    dtype: str
    token_bytes: int
    entries: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Listed:
    """One entry in service. `salt`: its folder's name, since a salt may be a secret; ages in seconds."""

    id: str
    model: str
    salt: str
    num_tokens: int
    position: int
    size_bytes: int
    age_s: float
    unused_s: float
    uses: int


@dataclass(frozen=True, slots=True)
class Verified:
    """`problem`: "" for a file that is what was written."""

    path: Path
    size_bytes: int
    problem: str


@dataclass(frozen=True, slots=True)
class Removed:
    entries: int
    bytes: int


class StoreAdmin:
    """The store at `path`. A context. StoreError if it is newer."""

    def __init__(self, path: Path) -> None:
        self._root = Root(path)
        try:
            with self._root.exclusive():
                self._catalog, self._reconciled = open_catalog(self._root, Counts())
        except BaseException:
            self._root.close()
            raise
        self._memory = _open_memory(path)

    def __enter__(self) -> StoreAdmin:
        return self

    def __exit__(self, *exc: object) -> None:
        self._catalog.close()
        self._root.close()
        if self._memory is not None:
            self._memory[1].close()
            self._memory[0].close()

    def repair(self) -> Reconciled:
        """Make the catalog agree with the files, if opening has not: a large store takes minutes."""
        if self._reconciled is None:
            self._reconciled = reconcile(self._root, self._catalog)
        return self._reconciled

    @property
    def open_elsewhere(self) -> int:
        """How many other processes have the store open."""
        return len(self._root.owners() - {self._root.owner})

    def in_memory(self) -> tuple[int, int]:
        """Entries and bytes in shared memory, of all models and processes."""
        return (0, 0) if self._memory is None else self._memory[1].usage()

    def models(self) -> list[ModelUse]:
        """Models that have entries here, the largest first."""
        uses = []
        for model, text in self._catalog.models().items():
            layout, (entries, used) = EntryLayout.from_json(text), self._catalog.usage(model)
            if used:
                uses.append(ModelUse(model, layout.dtype_name, layout.token_bytes, entries, used))
        return sorted(uses, key=lambda use: -use.bytes)

    def entries(self, model: str = "") -> Iterator[Listed]:
        """Entries of the models whose fingerprint starts with `model`."""
        now = time.time()
        for fingerprint in self._matching(model):
            for row in self._catalog.rows(fingerprint):
                if not isinstance(row, str):
                    info = row.info
                    yield Listed(
                        info.id,
                        fingerprint,
                        salt_folder(info.salt),
                        info.num_tokens,
                        info.position,
                        row.size,
                        max(0.0, now - row.created),
                        max(0.0, now - row.last_used),
                        row.uses,
                    )

    def verify(self, *, remove: bool) -> Iterator[Verified]:
        """Read every file in full. Damaged ones are taken out of service if `remove`."""
        for path in sorted(entry_files(self._root)):
            try:
                size = path.stat().st_size
                read_file(path)
                problem = ""
            except FileNotFoundError:
                continue  # evicted a moment ago
            except EntryCorrupt as error:
                problem = str(error)
                if remove:
                    self._root.discard(path)
            except UnknownFormat as error:
                problem = f"another format ({error})"
            except OSError as error:
                size, problem = 0, reason_of(error)
            yield Verified(path, size, problem)
        if remove:
            reconcile(self._root, self._catalog)

    def collect(self, *, max_bytes: int | None = None, unused_s: float | None = None) -> Removed:
        """Evict what nobody read for `unused_s` seconds, then the least recently used down to `max_bytes`."""
        gone: list[Victim] = []
        policy = LeastRecentlyUsed()
        while unused_s is not None:
            with self._catalog.transaction():
                batch = self._catalog.victims(SAMPLE, unused_since=time.time() - unused_s)
                self._remove(batch)
            gone += batch
            if not batch:
                break
        if max_bytes is not None:
            with self._catalog.transaction():
                make_room(self._root, self._catalog, policy, max_bytes, 0, time.time(), gone, unlinked)
        return Removed(len(gone), sum(victim.candidate.size_bytes for victim in gone))

    def clear(self, *, model: str = "", salt: str | None = None) -> Removed:
        """Delete every entry, or those of the models and the one salt given ("" is the shared one)."""
        count = size = 0
        for fingerprint in self._matching(model):
            for row in _clear(self._root, self._catalog, fingerprint, salt):
                count, size = count + 1, size + row.size
            if self._memory is not None:
                for _ in _clear(*self._memory, fingerprint, salt):
                    pass  # a copy of what was counted, or about to be written
            with self._root.exclusive():
                if salt is None and not self.open_elsewhere:  # a process that has it open knows it by its row
                    self._catalog.forget(fingerprint)
                    if self._memory is not None:
                        self._memory[1].forget(fingerprint)
        return Removed(count, size)

    def _matching(self, prefix: str) -> list[str]:
        found = sorted(model for model in self._catalog.models() if model.startswith(prefix))
        if prefix and not found:
            raise UsageError(
                f"no model of the store starts with {prefix!r}: `agentcache store status` lists them"
            )
        return found

    def _remove(self, batch: list[Victim]) -> None:
        for victim in batch:
            self._root.discard(self._root.entry_path(victim.model, victim.salt, victim.candidate.id))
        self._catalog.delete([victim.key for victim in batch])


def _open_memory(path: Path) -> tuple[Root, Catalog] | None:
    """The RAM tier of the store at `path`, if processes have it open, or were killed before they could delete it."""
    folder, _ = ram_folder(path, 0)
    if not (folder / "catalog.db").exists():
        return None
    root = Root(folder)
    with root.exclusive():
        return root, open_catalog(root, Counts())[0]


def _clear(root: Root, catalog: Catalog, model: str, salt: str | None) -> Iterator[Row]:
    """Delete a model's entries, or those of one salt. Yields what went."""
    rows = (row for row in catalog.rows(model) if not isinstance(row, str))
    chosen = [row for row in rows if salt is None or row.info.salt == salt]
    for start in range(0, len(chosen), SAMPLE):
        batch = chosen[start : start + SAMPLE]
        with catalog.transaction():
            for row in batch:
                root.discard(root.entry_path(model, row.info.salt, row.info.id))
            catalog.delete_ids(model, [row.info.id for row in batch])
        yield from batch
