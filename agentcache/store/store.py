"""The entry store: RAM above disk, written behind by one thread, verified on every read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
from agentcache.store.ram import RamTier, Resident
from agentcache.store.root import Root
from agentcache.store.stats import Counts, StoreStats, TierStats
from agentcache.store.tier import Tier
from agentcache.store.writer import Writer

OnEvict = Callable[[list[str]], None]


class EntryStore:
    """Entries of one model. Every method may be called from any thread.

    `on_evict` gets the ids that no tier can serve any more; it is called without locks held, from whichever
    thread found out, and may call the store. `on_add` gets entries that other processes have added, and files that
    are found while a large store is compared with its catalog; it is called from a thread of the store.
    """

    def __init__(
        self,
        root: Root,
        disk: DiskTier,
        ram_bytes: int,
        policy: EvictionPolicy,
        model: str,
        layout: EntryLayout,
        errors: Counts,
        on_evict: OnEvict | None,
        put_wait_s: float,
    ) -> None:
        """Use `open`."""
        self.model, self.layout = model, layout
        self._root, self._disk = root, disk
        self._lower: tuple[Tier, ...] = (disk,)  # nearest first
        self._clock = disk.clock
        self._errors, self._ram_counts = errors, Counts()
        self._on_evict = on_evict
        self._put_wait_s = put_wait_s
        self._changed = Condition()  # guards the RAM tier
        self._ram = RamTier(ram_bytes, policy)
        self._closed = False
        self._writer = Writer(self._write, self._disk.tick)

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
        ram_bytes: budget of this process, for K/V in RAM, queued writes included
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
        opened = Root(root)
        try:
            codec = codec_named(disk_codec, layout)
            disk = DiskTier(opened, model, layout, disk_bytes, policy, errors, codec, on_add)
        except BaseException:
            opened.close()
            raise
        return cls(opened, disk, ram_bytes, policy, model, layout, errors, on_evict, put_wait_s)

    def infos(self) -> Iterator[EntryInfo]:
        """Everything that can be served, each entry once; what is put meanwhile may be left out."""
        with self._changed:
            residents = {resident.info.id: resident.info for resident in self._ram.residents()}
        for info in self._disk.infos():
            residents.pop(info.id, None)
            yield info
        yield from residents.values()

    def put(self, info: EntryInfo, kv: torch.Tensor) -> None:
        """Store an entry: readable at once, durable later (`flush`). Idempotent. Takes over `kv`.

        Never fails for want of room, disk or permission: then the entry is not kept, or in RAM alone, and the
        reason is counted. ValueError if `kv` or the id do not fit the store.
        """
        kv = self._checked(info, kv)
        durable = not self._disk.missing([info.id])
        with self._changed:
            if info.id in self._ram or self._closed:
                return
            evicted = self._room(kv.nbytes, wait=not durable)
            if evicted is None:
                if not durable:
                    self._errors.add(
                        "larger_than_ram_budget" if kv.nbytes > self._ram.budget_bytes else "ram_full"
                    )
                return
            now = self._clock.now()
            resident = Resident(info, kv, now, now, 0, pinned=not durable, durable=durable)
            self._ram.add(resident)
        if not durable:
            self._writer.submit(resident)
        self._report(evicted)

    def read(self, id: str) -> torch.Tensor:
        """The entry's K/V, shared: never write to it. EntryMissing, or EntryCorrupt (out of service now)."""
        with self._changed:
            kv = self._ram.get(id, self._clock.now())
        self._ram_counts.add("misses" if kv is None else "hits")
        if kv is not None:
            return kv
        failure: StoreError = EntryMissing(f"entry {id[:12]} is in no tier")
        for tier in self._lower:
            try:
                info, kv = tier.read(id)
            except (EntryMissing, EntryCorrupt) as error:
                failure = error
            else:
                self._promote(info, kv)
                return kv
        self._tell([id])
        raise failure

    def contains(self, id: str) -> bool:
        return not self.missing([id])

    def missing(self, ids: Sequence[str]) -> list[str]:
        """Those of `ids` that no tier holds, in their order."""
        with self._changed:
            left = [id for id in ids if id not in self._ram]
        for tier in self._lower:
            left = tier.missing(left)
        return left

    def remove(self, id: str) -> None:
        """Delete an entry from every tier. Nothing happens if there is none."""
        with self._changed:
            here = self._ram.drop(id) is not None
        for tier in self._lower:
            here |= tier.remove(id)
        if here:
            self._tell([id])

    def flush(self, timeout_s: float) -> bool:
        """Wait until every write queued by now is durable or given up; False if that takes longer."""
        return self._writer.flush(timeout_s)

    def stats(self) -> StoreStats:
        with self._changed:
            entries, used = len(self._ram), self._ram.num_bytes
        counts = self._ram_counts
        ram = TierStats(
            entries, used, self._ram.budget_bytes, counts["hits"], counts["misses"], counts["evictions"]
        )
        return StoreStats(
            tiers={"ram": ram} | {tier.name: tier.stats() for tier in self._lower},
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
        if self._writer.close(timeout_s):
            for tier in self._lower:
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
        kv = kv.detach().contiguous()
        if kv.untyped_storage().nbytes() > kv.nbytes:
            kv = kv.clone()  # a slice would keep a tensor alive that the budget does not know
        return kv

    def _room(self, size_bytes: int, *, wait: bool) -> list[Resident] | None:
        """Room in RAM, waiting for queued writes if they are what fills it. Call with the lock held."""
        evicted = self._ram.make_room(size_bytes)
        if evicted is None and wait and size_bytes <= self._ram.budget_bytes:

            def try_again() -> bool:
                nonlocal evicted
                evicted = self._ram.make_room(size_bytes)
                return evicted is not None

            self._changed.wait_for(try_again, self._put_wait_s)
        return evicted

    def _promote(self, info: EntryInfo, kv: torch.Tensor) -> None:
        with self._changed:
            evicted = None if info.id in self._ram else self._ram.make_room(kv.nbytes)
            if evicted is not None:
                now = self._clock.now()
                self._ram.add(Resident(info, kv, now, now, 1, pinned=False, durable=True))
        self._report(evicted or [])

    def _write(self, resident: Resident) -> None:
        """Runs in the writer thread."""
        info = resident.info
        if self._ram.peek(info.id) is not resident:
            return
        durable, gone = True, []
        try:
            for tier in self._lower:
                gone += tier.write(info, resident.kv)
        except WriteRefused as refused:
            self._errors.add(refused.reason)
            durable, gone = False, gone + refused.evicted
        with self._changed:
            removed = self._ram.peek(info.id) is not resident
            self._ram.unpin(resident, durable)
            for id in gone:
                above = self._ram.peek(id)
                if above is not None:
                    above.durable = False
            lost = [id for id in gone if id not in self._ram]
            self._changed.notify_all()
        if removed:
            for tier in self._lower:
                tier.remove(info.id)
        self._tell(lost)

    def _report(self, evicted: list[Resident]) -> None:
        self._ram_counts.add("evictions", len(evicted))
        self._tell([resident.info.id for resident in evicted if not resident.durable])

    def _tell(self, ids: list[str]) -> None:
        if ids and self._on_evict is not None:
            self._on_evict(ids)
