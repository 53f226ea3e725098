"""The entry store: shared memory above disk above remote tiers, written behind, verified when it leaves a file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Condition

import torch

from agentcache.entry import EntryInfo, entry_id
from agentcache.errors import StoreError
from agentcache.store.codecs import codec_named
from agentcache.store.disk import DiskTier, OnAdd
from agentcache.store.errors import EntryCorrupt, EntryMissing, WriteRefused
from agentcache.store.layout import EntryLayout
from agentcache.store.policy import EvictionPolicy, LeastRecentlyUsed
from agentcache.store.ram import RamTier, ram_folder
from agentcache.store.root import Root
from agentcache.store.stats import Counts, StoreStats
from agentcache.store.tier import Tier
from agentcache.store.writer import Pending, Writer

OnEvict = Callable[[list[str]], None]
_MOVING_BYTES = 256 << 20
"""Of entries on their way up, at most: they are held in the process's own memory meanwhile."""


class EntryStore:
    """Entries of one model. Every method may be called from any thread.

    `on_evict` gets the ids that no tier can serve any more; it is called without locks held, from whichever
    thread found out, and may call the store. `on_add` gets entries that other processes have added, and files that
    are found while a large store is compared with its catalog; it is called from a thread of the store.
    """

    def __init__(
        self,
        root: Root,
        ram: RamTier,
        disk: DiskTier,
        remote: Sequence[Tier],
        model: str,
        layout: EntryLayout,
        errors: Counts,
        on_evict: OnEvict | None,
        put_wait_s: float,
    ) -> None:
        """Use `open`."""
        self.model, self.layout = model, layout
        self._root, self._ram, self._disk = root, ram, disk
        self._lower: tuple[Tier, ...] = (disk, *remote)  # nearest first
        self._errors, self._on_evict, self._put_wait_s = errors, on_evict, put_wait_s
        self._changed = Condition()  # guards `_queued`, and tells when it has become shorter
        self._queued: set[str] = set()
        self._closed = False
        self._writer = Writer("writer", self._write, self._tick)
        self._mover = Writer("mover", self._move_up)
        for info in ram.infos():  # what a killed process had no time to make durable
            with suppress(StoreError):
                if disk.missing([info.id]):
                    self._queue(Pending(info, ram.read(info.id)[1]))

    @classmethod
    def open(
        cls,
        root: Path,
        model: str,
        layout: EntryLayout,
        ram_bytes: int,
        disk_bytes: int,
        *,
        on_evict: OnEvict | None = None,
        on_add: OnAdd | None = None,
        policy: EvictionPolicy | None = None,
        put_wait_s: float = 0.5,
        disk_codec: str = "raw",
    ) -> EntryStore:
        """Open (or create) the store at `root` for one model.

        model: the engine's fingerprint, 64 hex digits; entries of other models live apart in the same root
        ram_bytes: budget of all processes that have the root open, for entry files in shared memory, those queued
            to be written to disk included; nothing is put where it is 0
        disk_bytes: budget of the whole root, for entry files, temporary ones included; 0: nothing is written
        disk_codec: how entries are written (`codecs.py`); all of them are read
        put_wait_s: how long `put` may wait for queued writes when RAM is full of them

        A root that cannot be written is served read-only. StoreError if it cannot be read, was written by a
        newer agentcache, or holds this model with another layout.
        """
        if len(model) != 64 or not set(model) <= set("0123456789abcdef"):
            raise StoreError("a store is opened for a model fingerprint of 64 hex digits")
        policy = policy or LeastRecentlyUsed()
        errors = Counts()
        codec = codec_named(disk_codec, layout)
        opened = Root(root)
        try:
            disk = DiskTier(opened, model, layout, disk_bytes, policy, errors, codec, on_add)
            try:
                folder, room = ram_folder(root, ram_bytes)
                ram = RamTier(Root(folder), model, layout, room, policy, errors)
            except BaseException:
                disk.close()
                raise
        except BaseException:
            opened.close()
            raise
        return cls(opened, ram, disk, (), model, layout, errors, on_evict, put_wait_s)

    def infos(self) -> Iterator[EntryInfo]:
        """Everything that can be served, each entry once; what is put meanwhile may be left out."""
        above = {info.id: info for info in self._ram.infos()}
        for info in self._disk.infos():
            above.pop(info.id, None)
            yield info
        yield from above.values()

    def put(self, info: EntryInfo, kv: torch.Tensor) -> None:
        """Store an entry: readable at once, durable later (`flush`). Idempotent.

        Never fails for want of room, disk or permission: then the entry is not kept, or in RAM alone, and the
        reason is counted. ValueError if `kv` or the id do not fit the store.
        """
        kv = self._checked(info, kv)
        with self._changed:
            if self._closed or info.id in self._queued:
                return
        durable = not self._disk.missing([info.id])
        if durable and not self._ram.missing([info.id]):
            return
        try:
            evicted = self._write_ram(info, kv, wait=not durable)
        except WriteRefused as refused:
            self._lost_from_ram(refused.evicted)
            if durable:
                return
            self._errors.add(refused.reason)
            if refused.by_budget or self._writer.pending_bytes + kv.nbytes > self._ram.budget_bytes:
                return
            self._queue(Pending(info, kv.clone()))  # no shared memory to be had: straight to disk
            return
        self._lost_from_ram(evicted)
        if not durable:
            try:
                kv = self._ram.read(info.id)[1]
            except (EntryMissing, EntryCorrupt):  # evicted at once: there is hardly any room
                kv = kv.clone()
            self._queue(Pending(info, kv))

    def read(self, id: str) -> torch.Tensor:
        """The entry's K/V, shared: never write to it. EntryMissing, or EntryCorrupt (out of service now)."""
        failure: StoreError
        try:
            return self._ram.read(id)[1]
        except (EntryMissing, EntryCorrupt) as error:
            failure = error
        for tier in self._lower:
            try:
                info, kv = tier.read(id)
            except (EntryMissing, EntryCorrupt) as error:
                failure = error if isinstance(error, EntryCorrupt) else failure
            else:
                if self._mover.pending_bytes + kv.nbytes <= _MOVING_BYTES:
                    self._mover.submit(Pending(info, kv))
                return kv
        self._tell([id])
        raise failure

    def contains(self, id: str) -> bool:
        return not self.missing([id])

    def missing(self, ids: Sequence[str]) -> list[str]:
        """Those of `ids` that no tier holds, in their order."""
        left = self._ram.missing(ids)
        for tier in self._lower:
            left = tier.missing(left)
        return left

    def remove(self, id: str) -> None:
        """Delete an entry from every tier. Nothing happens if there is none."""
        with self._changed:
            here = id in self._queued
            self._queued.discard(id)
        for tier in (self._ram, *self._lower):
            here |= tier.remove(id)
        if here:
            self._tell([id])

    def flush(self, timeout_s: float) -> bool:
        """Wait until every write and move queued by now is done or given up; False if that takes longer."""
        began = time.monotonic()
        return self._writer.flush(timeout_s) and self._mover.flush(
            max(0.0, began + timeout_s - time.monotonic())
        )

    def stats(self) -> StoreStats:
        return StoreStats(
            tiers={tier.name: tier.stats() for tier in (self._ram, *self._lower)},
            entries=self._disk.num_entries(),
            pending=self._writer.pending,
            errors=self._errors.to_dict(),
        )

    def close(self, timeout_s: float = 60.0) -> None:
        """Finish queued writes (those that take longer are lost), and let go of the root. Idempotent."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
        if self._writer.close(timeout_s) and self._mover.close(timeout_s):
            for tier in (self._ram, *self._lower):
                tier.close()
            self._root.close()

    def __enter__(self) -> EntryStore:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _checked(self, info: EntryInfo, kv: torch.Tensor) -> torch.Tensor:
        if kv.device.type != "cpu" or kv.dtype != self.layout.dtype or info.num_tokens < 1:
            raise ValueError(f"K/V of at least one token, {self.layout.dtype} on the CPU, is stored")
        if kv.shape != self.layout.shape(info.num_tokens):
            raise ValueError(
                f"K/V of shape {tuple(kv.shape)} instead of {self.layout.shape(info.num_tokens)}"
            )
        if info.id != entry_id(self.model, info.salt, info.context, info.tokens):
            raise ValueError(f"{info.id[:12]} is not the entry's content address for this model")
        return kv.detach().contiguous()

    def _write_ram(self, info: EntryInfo, kv: torch.Tensor, *, wait: bool) -> list[str]:
        """Into the RAM tier, waiting for queued writes if they are what fills it. What was evicted, or WriteRefused."""
        until = time.monotonic() + (self._put_wait_s if wait else 0.0)
        gone: list[str] = []
        while True:
            try:
                return gone + self._ram.write(info, kv)
            except WriteRefused as refused:
                gone += refused.evicted
                left = until - time.monotonic()
                if refused.reason != "ram_budget_taken" or left <= 0:
                    refused.evicted = gone
                    raise
                with self._changed:
                    self._changed.wait(min(left, 0.05))  # another process's writes may end as well

    def _queue(self, entry: Pending) -> None:
        with self._changed:
            self._queued.add(entry.info.id)
        self._writer.submit(entry)

    def _write(self, entry: Pending) -> None:
        """Runs in the writer's thread."""
        info = entry.info
        with self._changed:
            if info.id not in self._queued:
                return  # removed meanwhile
        gone: list[str] = []
        try:
            gone = self._disk.write(info, entry.kv)
        except WriteRefused as refused:
            self._errors.add(refused.reason)
            gone = refused.evicted
        with self._changed:
            removed = info.id not in self._queued
            self._queued.discard(info.id)
            self._changed.notify_all()
        if removed:
            self._disk.remove(info.id)
        self._tell(self.missing(gone))

    def _move_up(self, entry: Pending) -> None:
        """Runs in the mover's thread: what was read below is likely to be read again."""
        try:
            self._lost_from_ram(self._ram.write(entry.info, entry.kv))
        except WriteRefused as refused:
            self._lost_from_ram(refused.evicted)

    def _tick(self) -> None:
        for tier in (self._ram, *self._lower):
            tier.tick()

    def _lost_from_ram(self, ids: list[str]) -> None:
        """The RAM tier has evicted entries; below they may be there still."""
        self._tell(self.missing(ids))

    def _tell(self, ids: list[str]) -> None:
        if ids and self._on_evict is not None:
            self._on_evict(ids)
