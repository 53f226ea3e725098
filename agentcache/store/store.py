"""The entry store: shared memory above disk above remote tiers, written behind, verified when it leaves a file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from threading import Condition

import torch

from agentcache.entry import EntryInfo, entry_id
from agentcache.errors import StoreError
from agentcache.store.buckets import open_bucket
from agentcache.store.codecs import codec_named
from agentcache.store.disk import DiskTier, OnAdd
from agentcache.store.errors import EntryCorrupt, EntryMissing, WriteRefused
from agentcache.store.layout import EntryLayout
from agentcache.store.policy import EvictionPolicy, ExpectedValue
from agentcache.store.ram import RamTier, claim, ram_folder
from agentcache.store.remote import RemoteTier
from agentcache.store.root import Root
from agentcache.store.sender import Sender
from agentcache.store.stats import Counts, StoreStats
from agentcache.store.tier import Tier
from agentcache.store.writer import Pending, Writer

OnEvict = Callable[[list[str]], None]
_MOVING_BYTES = 256 << 20
"""Of entries on their way up, at most: they are held in the process's own memory meanwhile."""


_HEDGE_S = 0.1
"""How long a read waits for the disk alone when a remote tier has the entry as well."""


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
        remote: RemoteTier | None,
        model: str,
        layout: EntryLayout,
        errors: Counts,
        on_evict: OnEvict | None,
        put_wait_s: float,
    ) -> None:
        """Use `open`."""
        self.model, self.layout = model, layout
        self._root, self._ram, self._disk = root, ram, disk
        self._remote = remote
        self._lower: tuple[Tier, ...] = (disk,) if remote is None else (disk, remote)  # nearest first
        self._errors, self._on_evict, self._put_wait_s = errors, on_evict, put_wait_s
        self._changed = Condition()  # guards `_queued`, and tells when it has become shorter
        self._queued: set[str] = set()
        self._closed = False
        self._writer = Writer("writer", self._write, self._tick)
        self._mover = Writer("mover", self._move_up)
        self._sender = None if remote is None else Sender(remote, self._read_here)
        self._readers = ThreadPoolExecutor(4, thread_name_prefix="agentcache-store-reader")
        # with threads of its own: a read that a step waits for never stands behind prefetches of a slow tier
        self._fetchers = ThreadPoolExecutor(4, thread_name_prefix="agentcache-store-fetcher")
        self._fetching: set[str] = set()
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
        remote_url: str = "",
        remote_codec: str = "raw",
        remote_timeout_s: float = 5.0,
    ) -> EntryStore:
        """Open (or create) the store at `root` for one model.

        model: the engine's fingerprint, 64 hex digits; entries of other models live apart in the same root
        ram_bytes: budget of all processes that have the root open, for entry files in shared memory, those queued
            to be written to disk included; nothing is put where it is 0
        disk_bytes: budget of the whole root, for entry files, temporary ones included; 0: nothing is written
        disk_codec, remote_codec: how entries are written (`codecs.py`); all of them are read
        remote_url: where to share entries with other machines (`buckets.py`); "": nowhere
        remote_timeout_s: after that a call of the remote tier has failed
        put_wait_s: how long `put` may wait for queued writes when RAM is full of them

        A root that cannot be written is served read-only. StoreError if it cannot be read, was written by a
        newer agentcache, or holds this model with another layout.
        """
        if len(model) != 64 or not set(model) <= set("0123456789abcdef"):
            raise StoreError("a store is opened for a model fingerprint of 64 hex digits")
        policy = policy or ExpectedValue()
        errors = Counts()
        codec = codec_named(disk_codec, layout)
        remote = None
        if remote_url:
            bucket = open_bucket(remote_url, remote_timeout_s)
            remote = RemoteTier(bucket, model, layout, codec_named(remote_codec, layout), errors, on_add)
        opened = Root(root)
        try:
            disk = DiskTier(opened, model, layout, disk_bytes, policy, errors, codec, on_add)
            try:
                folder, room = ram_folder(root, ram_bytes)
                ram = RamTier(Root(folder), model, layout, room, policy, errors)
                claim(folder, root)
            except BaseException:
                disk.close()
                raise
        except BaseException:
            opened.close()
            raise
        return cls(opened, ram, disk, remote, model, layout, errors, on_evict, put_wait_s)

    def infos(self) -> Iterator[EntryInfo]:
        """Everything that can be served, each entry once; what is put meanwhile may be left out."""
        above = {info.id: info for info in self._ram.infos()}
        for info in self._disk.infos():
            above.pop(info.id, None)
            yield info
        yield from above.values()
        # the remote tier's are told by `on_add`, when it has been looked at: no start waits for a network

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
        try:
            return self._ram.read(id)[1]
        except EntryMissing:
            corrupt = ""
        except EntryCorrupt as error:
            corrupt = str(
                error
            )  # not the error itself: its traceback would hold what the callers hold, for long
        try:
            info, kv = self._read_below(id)
        except (EntryMissing, EntryCorrupt):
            self._tell([id])
            if corrupt:
                raise EntryCorrupt(corrupt) from None
            raise
        if self._mover.pending_bytes + kv.nbytes <= _MOVING_BYTES:
            self._mover.submit(Pending(info, kv))
        return kv

    def prefetch(self, ids: Sequence[str]) -> None:
        """Begin to bring entries into RAM; returns at once. The nearest tiers' own pace is the limit."""
        with self._changed:
            wanted = [id for id in self._ram.missing(ids) if id not in self._fetching]
            self._fetching.update(wanted)
        for id in wanted:
            with suppress(RuntimeError):  # closed
                self._fetchers.submit(self._prefetch, id)

    def ready(self, id: str) -> bool:
        """Whether reading the entry waits for nothing but this machine."""
        return not self._disk.missing(self._ram.missing([id]))

    def far(self, ids: Sequence[str]) -> dict[str, int]:
        """Those of `ids` that only the remote tier has, as far as is known here, and their bytes there."""
        if self._remote is None:
            return {}
        return self._remote.sizes(self._disk.missing(self._ram.missing(ids)))

    def fetch_s(self, num_bytes: int) -> float:
        """How long fetching so many bytes takes, from the last reads; infinite while the remote tier is benched."""
        return float("inf") if self._remote is None else self._remote.fetch_s(num_bytes)

    def wait_s(self, info: EntryInfo) -> float:
        """How long reading the entry would wait for the remote tier, from its last reads: 0 if it is here.

        A request should wait if that is less than computing the entry's tokens takes. Infinite if nobody has it.
        """
        if self.ready(info.id):
            return 0.0
        if self._remote is None or self._remote.missing([info.id]):
            return float("inf")
        return self._remote.expected_s(info.num_tokens)

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

    def weigh(self, weights: dict[str, float]) -> None:
        """Say how likely entries are to be read, beyond what their uses say: 1 is usual, 0 is never again.

        For eviction alone: an entry that no index refers to any more goes before one of an important file.
        """
        self._ram.weigh(weights)
        self._disk.weigh(weights)

    def flush(self, timeout_s: float) -> bool:
        """Wait until every write and move queued by now is done or given up; False if that takes longer."""
        began = time.monotonic()
        return (
            self._writer.flush(timeout_s)
            and self._mover.flush(max(0.0, began + timeout_s - time.monotonic()))
            and (self._sender is None or self._sender.flush(max(0.0, began + timeout_s - time.monotonic())))
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
        self._readers.shutdown(wait=True, cancel_futures=True)
        self._fetchers.shutdown(wait=True, cancel_futures=True)
        sent = self._sender is None or self._sender.close(timeout_s)
        if self._writer.close(timeout_s) and self._mover.close(timeout_s) and sent:
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
        if self._sender is not None and not removed:
            self._sender.submit(info)

    def _read_below(self, id: str) -> tuple[EntryInfo, torch.Tensor]:
        """From disk; the remote tier joins in when the disk has not answered soon, and the first one counts."""
        remote = self._remote
        if remote is None:
            return self._disk.read(id)
        if remote.missing([id]) or not self._disk.missing([id]):
            disk = self._readers.submit(self._disk.read, id)
            wait([disk], timeout=None if remote.missing([id]) else _HEDGE_S)
            if disk.done() and (disk.exception() is None or remote.missing([id])):
                return disk.result()
            return _first([disk, self._readers.submit(remote.read, id)])
        return remote.read(id)

    def _read_here(self, id: str) -> torch.Tensor:
        """For the sender: never from the remote tier itself."""
        with suppress(EntryMissing, EntryCorrupt):
            return self._ram.read(id)[1]
        return self._disk.read(id)[1]

    def _prefetch(self, id: str) -> None:
        try:
            info, kv = self._disk.read(id)
        except (EntryMissing, EntryCorrupt):
            if self._remote is None:
                return
            try:
                info, kv = self._remote.read(id)
            except (EntryMissing, EntryCorrupt):
                return
        finally:
            with self._changed:
                self._fetching.discard(id)
        self._mover.submit(Pending(info, kv))

    def _move_up(self, entry: Pending) -> None:
        """Runs in the mover's thread: what was read below is likely to be read again."""
        try:
            self._lost_from_ram(self._ram.write(entry.info, entry.kv))
        except WriteRefused as refused:
            self._lost_from_ram(refused.evicted)

    def _tick(self) -> None:
        self._ram.tick()
        self._disk.tick()  # the remote one has a thread of its own: it may take long

    def _lost_from_ram(self, ids: list[str]) -> None:
        """The RAM tier has evicted entries; below they may be there still."""
        self._tell(self.missing(ids))

    def _tell(self, ids: list[str]) -> None:
        if ids and self._on_evict is not None:
            self._on_evict(ids)


def _first(
    reads: list[Future[tuple[EntryInfo, torch.Tensor]]],
) -> tuple[EntryInfo, torch.Tensor]:
    """The first read that succeeds; the failure of the first tier if none does."""
    left = set(reads)
    while left:
        done, left = wait(left, return_when=FIRST_COMPLETED)
        for read in done:
            if read.exception() is None:
                return read.result()
    return reads[0].result()
