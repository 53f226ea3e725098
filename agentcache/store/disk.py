"""The disk tier: one file an entry, a catalog beside them, a budget for the whole root."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event, Lock, Thread

import torch

from agentcache.entry import EntryInfo
from agentcache.errors import StoreError
from agentcache.store.catalog import Catalog, Victim
from agentcache.store.clock import StoreClock
from agentcache.store.codecs import RAW, Codec, num_bytes
from agentcache.store.errors import EntryCorrupt, EntryMissing, WriteRefused, catalog_reason, reason_of
from agentcache.store.evict import make_room, unlinked
from agentcache.store.files import read_file, write_file
from agentcache.store.format import Head, UnknownFormat, encode
from agentcache.store.layout import EntryLayout
from agentcache.store.listing import listed, listed_from_files
from agentcache.store.opening import open_catalog
from agentcache.store.policy import EvictionPolicy
from agentcache.store.reconcile import reconcile
from agentcache.store.root import Root
from agentcache.store.rows import Row
from agentcache.store.schema import is_damage
from agentcache.store.stats import Counts, TierStats

_RETRY_S = 10.0

OnAdd = Callable[[list[EntryInfo]], None]


class DiskTier:
    """Entries of one model under `root`. Implements `tier.Tier`; faults are counted in `errors` by reason."""

    name = "disk"

    def __init__(
        self,
        root: Root,
        model: str,
        layout: EntryLayout,
        budget_bytes: int,
        policy: EvictionPolicy,
        errors: Counts,
        codec: Codec = RAW,
        on_add: OnAdd | None = None,
    ) -> None:
        """codec: how entries are written; on_add: told of entries that others added, and of files found later

        StoreError if the catalog is newer than this program, or knows the model with another layout.
        """
        self._root, self._model, self._layout, self._codec = root, model, layout, codec
        self.budget_bytes, self._policy, self._errors = budget_bytes, policy, errors
        self._counts = Counts()
        self._touches: dict[str, tuple[int, float]] = {}
        self._touch_lock = Lock()
        self._next_try = 0.0
        self._closing, self._comparing = Event(), Thread()
        self._on_add, self._own = on_add, set[str]()
        self._catalog = self._attach()  # last: it may evict, and begin to compare
        self._seen_key = self._newest_key()
        self.clock = StoreClock(self._catalog.newest_use())

    def infos(self) -> Iterator[EntryInfo]:
        seen: set[str] = set()
        try:
            yield from listed(self._root, self._catalog, self._model, seen, self._errors)
        except sqlite3.Error as error:
            self._errors.add(catalog_reason(error))
            if is_damage(error):
                self._rebuild()
            # the rest from the files themselves: slower, but there is no doubt about it
            yield from listed_from_files(self._root, self._model, self._layout, seen)

    def read(self, id: str) -> tuple[EntryInfo, torch.Tensor]:
        path = self._find(id)
        try:
            if path is None:
                raise FileNotFoundError
            head, info, kv = self._load(path)
            if info.id != id:
                raise EntryCorrupt(f"the file of entry {id[:12]} holds another one")
            if head.layout != self._layout:
                raise UnknownFormat("layout")
        except FileNotFoundError:
            self._forget_row(id)
            raise self._miss(id, "") from None
        except UnknownFormat:
            raise self._miss(id, "unknown_format") from None
        except OSError as error:
            raise self._miss(id, reason_of(error)) from error
        except EntryCorrupt:
            self._counts.add("misses")
            self._errors.add("corrupt")
            assert path is not None
            with suppress(OSError):
                self._root.discard(path)
            self._forget_row(id)
            raise
        self._counts.add("hits")
        with self._touch_lock:
            self._touches[id] = (self._touches.get(id, (0, 0.0))[0] + 1, self.clock.now())
        return info, kv

    def write(self, info: EntryInfo, kv: torch.Tensor) -> list[str]:
        if self._root.refusal:
            raise WriteRefused(self._root.refusal)
        if not self.budget_bytes:
            raise WriteRefused(f"no_{self.name}_budget")
        gone: list[Victim] = []
        try:
            self._write(info, kv, gone)
        except WriteRefused as refused:
            refused.evicted = self._evicted(gone)
            raise
        except OSError as error:
            raise WriteRefused(reason_of(error), self._evicted(gone)) from error
        except sqlite3.Error as error:
            raise WriteRefused(catalog_reason(error), self._evicted(gone)) from error
        return self._evicted(gone)

    def missing(self, ids: Sequence[str]) -> list[str]:
        return [id for id in ids if self._find(id) is None]

    def remove(self, id: str) -> bool:
        path = self._find(id)
        try:
            with self._catalog.transaction():
                if path is not None:
                    self._spare(path)  # lets go of it first, where it is mapped
                    self._root.discard(path)
                self._catalog.delete_ids(self._model, [id])
        except OSError as error:
            self._errors.add(reason_of(error))
        except sqlite3.Error as error:
            self._errors.add(catalog_reason(error))
        return path is not None

    def tick(self) -> None:
        if self._root.refusal and time.monotonic() >= self._next_try:
            self.recover()
        self._note_uses()
        if self._on_add is not None:
            self._tell_news(self._on_add)

    def _note_uses(self) -> None:
        with self._touch_lock:
            touches, self._touches = self._touches, {}
        if touches:
            try:
                self._catalog.touch(self._model, touches)
            except sqlite3.Error as error:
                self._errors.add(catalog_reason(error))

    def _tell_news(self, on_add: OnAdd) -> None:
        """Tell what other processes have added since the last call."""
        try:
            newest = self._catalog.newest_key()
            if newest > self._seen_key:
                rows = list(self._catalog.rows(self._model, after=self._seen_key))
                self._seen_key = newest
                news = [row.info for row in rows if not isinstance(row, str) and row.info.id not in self._own]
                self._own.clear()
                if news:
                    on_add(news)
        except sqlite3.Error as error:
            self._errors.add(catalog_reason(error))

    def _newest_key(self) -> int:
        try:
            return self._catalog.newest_key()
        except sqlite3.Error:
            return -1  # counted where it matters

    def weigh(self, weights: dict[str, float]) -> None:
        """As `EntryStore.weigh`."""
        try:
            self._catalog.weigh(self._model, weights)
        except sqlite3.Error as error:
            self._errors.add(catalog_reason(error))

    def stats(self) -> TierStats:
        entries, used = self._usage(None)
        counts = self._counts
        return TierStats(
            entries, used, self.budget_bytes, counts["hits"], counts["misses"], counts["evictions"]
        )

    def num_entries(self) -> int:
        """Entries of this model in service."""
        return self._usage(self._model)[0]

    def close(self) -> None:
        self._closing.set()
        if self._comparing.ident is not None:
            self._comparing.join()
        self._note_uses()
        self._catalog.close()

    def settled(self, timeout_s: float) -> bool:
        """Wait until the catalog of a large store has been compared with the files."""
        if self._comparing.ident is not None:
            self._comparing.join(timeout_s)
        return not self._comparing.is_alive()

    def recover(self) -> None:
        """Try to write again, in a root that could not be written so far."""
        self._root.acquire()
        if self._root.refusal:
            self._next_try = time.monotonic() + _RETRY_S
            return
        try:
            self._catalog = self._attach()  # the old one is in memory, and may be in use a moment longer
        except StoreError:
            self._root.refusal = "catalog"

    def _attach(self) -> Catalog:
        """The catalog, made to agree with the files, and the budget with it."""
        with self._root.exclusive():
            catalog, compared = open_catalog(self._root, self._errors)
            self._next_try = time.monotonic() + _RETRY_S
            try:
                catalog.register(self._model, self._layout.to_json())
                if self.budget_bytes and not self._root.refusal:
                    with catalog.transaction():
                        make_room(
                            self._root,
                            catalog,
                            self._policy,
                            self.budget_bytes,
                            0,
                            time.time(),
                            [],
                            self._spare,
                        )
            except StoreError:
                catalog.close()
                raise
            except sqlite3.Error as error:
                self._errors.add(catalog_reason(error))  # `write` tries again
        if compared is None:
            self._comparing = Thread(
                target=self._compare, args=[catalog], name="agentcache-store-compare", daemon=True
            )
            self._comparing.start()
        return catalog

    def _compare(self, catalog: Catalog) -> None:
        def adopted(model: str, infos: list[EntryInfo]) -> None:
            if model == self._model and self._on_add is not None:
                self._on_add(infos)

        try:
            reconcile(self._root, catalog, stopped=self._closing.is_set, adopted=adopted)
        except sqlite3.Error as error:
            self._errors.add(catalog_reason(error))

    def _write(self, info: EntryInfo, kv: torch.Tensor, gone: list[Victim]) -> None:
        if num_bytes(self._codec, self._layout, info.num_tokens) > self.budget_bytes:
            raise WriteRefused(f"larger_than_{self.name}_budget")
        buffers = encode(self._model, self._layout, info, kv, self._codec)
        size = sum(len(buffer) for buffer in buffers)
        if size > self.budget_bytes:
            raise WriteRefused(f"larger_than_{self.name}_budget")
        path = self._root.entry_path(self._model, info.salt, info.id)
        self._note_uses()  # what was read lately must not be what goes
        with self._catalog.transaction():
            if path.is_file() and self._catalog.salt_of(self._model, info.id) is not None:
                return
            if not make_room(
                self._root,
                self._catalog,
                self._policy,
                self.budget_bytes,
                size,
                self.clock.now(),
                gone,
                self._spare,
            ):
                raise WriteRefused(f"{self.name}_budget_taken")
            reservation = self._catalog.reserve(self._root.owner, self._model, info.salt, info.id, size)
        try:
            self._save(path, buffers)
            now = self.clock.now()
            with self._catalog.transaction():
                self._catalog.release(reservation)
                self._catalog.upsert(self._model, [Row(info, size, now, now, 0)])
            self._own.add(info.id)
        except (OSError, sqlite3.Error):
            with suppress(sqlite3.Error):  # else the next process to open the root releases it
                self._catalog.release(reservation)
            raise

    def _load(self, path: Path) -> tuple[Head, EntryInfo, torch.Tensor]:
        return read_file(path)

    def _save(self, path: Path, buffers: list[memoryview]) -> None:
        write_file(path, self._root.scratch, buffers)

    def _spare(self, path: Path) -> bool:
        return unlinked(path)

    def _evicted(self, gone: list[Victim]) -> list[str]:
        self._counts.add("evictions", len(gone))
        return [victim.candidate.id for victim in gone if victim.model == self._model]

    def _find(self, id: str) -> Path | None:
        """The entry's path if something lies there. Another process may have written it a moment ago."""
        if len(id) != 64 or not id.isalnum():
            return None
        try:
            salt = self._catalog.salt_of(self._model, id)
        except sqlite3.Error as error:
            self._errors.add(catalog_reason(error))
            salt = None
        if salt is not None:
            path = self._root.entry_path(self._model, salt, id)
            return path if path.exists() else None
        shared = self._root.entry_path(self._model, "", id)
        folder = shared.parent.parent.parent
        for name in self._root.salt_folders(self._model):
            path = folder / name / shared.parent.name / shared.name
            if path.exists():
                return path
        return None

    def _forget_row(self, id: str) -> None:
        """Drop the row of a file that is gone, unless another process has written it again."""
        with suppress(sqlite3.Error), self._catalog.transaction():
            if self._find(id) is None:
                self._catalog.delete_ids(self._model, [id])

    def _miss(self, id: str, reason: str) -> EntryMissing:
        self._counts.add("misses")
        if reason:
            self._errors.add(reason)
        return EntryMissing(
            f"entry {id[:12]} is not in the {self.name} tier" + (f" ({reason})" if reason else "")
        )

    def _rebuild(self) -> None:
        try:
            with self._root.exclusive():
                self._catalog.recreate()
                self._catalog.register(self._model, self._layout.to_json())
                reconcile(self._root, self._catalog)
        except sqlite3.Error as error:
            self._errors.add(catalog_reason(error))
        except OSError as error:
            self._errors.add(reason_of(error))

    def _usage(self, model: str | None) -> tuple[int, int]:
        try:
            return self._catalog.usage(model)
        except sqlite3.Error as error:
            self._errors.add(catalog_reason(error))
            return 0, 0
