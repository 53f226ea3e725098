"""The RAM tier: entry files in shared memory, one budget for all processes of a host, read without a copy.

It is a disk tier whose disk is memory, so a killed process leaves it as usable, and as much within its budget, as it
leaves the disk. Whoever reads an entry maps its file and holds a shared lock on it for as long as the tensor lives;
the kernel lets go of both when a process dies. Eviction takes an exclusive lock first, and passes over files that it
cannot have. The last process to close the tier deletes it: it is only a cache of the disk.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from threading import Lock

import torch
from blake3 import blake3

from agentcache.entry import EntryInfo
from agentcache.errors import StoreError
from agentcache.store.disk import DiskTier
from agentcache.store.files import map_info, write_file
from agentcache.store.format import Head
from agentcache.store.layout import EntryLayout
from agentcache.store.policy import EvictionPolicy
from agentcache.store.root import Root
from agentcache.store.stats import Counts

SHARED_MEMORY = Path("/dev/shm")
_MADV_POPULATE_READ = 22  # Linux 5.14: map all pages in one call, instead of a fault for every 64 KiB


_KEPT_S = 10.0
_OF = "store"  # in the folder of a RAM tier: where its store lies


def ram_folder(root: Path, budget_bytes: int) -> tuple[Path, int]:
    """Where the RAM tier of the store at `root` lies, and how much of `budget_bytes` it may use there.

    In shared memory; or, where there is too little of it (containers often have 64 MB), beside the entries, where the
    system's page cache does the same, less surely.
    """
    digest = blake3(os.fsencode(root.resolve())).hexdigest(8)
    folder = SHARED_MEMORY / f"agentcache-{os.geteuid()}-{digest}"
    try:
        room = os.statvfs(SHARED_MEMORY)
        there = folder.lstat() if folder.exists() else None
    except OSError:
        return root / "ram", budget_bytes
    if there is not None and (there.st_uid != os.geteuid() or there.st_mode & 0o077):
        return root / "ram", budget_bytes  # somebody else's
    most = int(0.8 * room.f_blocks * room.f_frsize)
    if most < budget_bytes // 2:
        return root / "ram", budget_bytes
    return folder, min(budget_bytes, most)


def claim(folder: Path, root: Path) -> None:
    """Note whose RAM tier `folder` is, and delete those of stores that are gone, which killed processes left."""
    if folder.parent != SHARED_MEMORY:
        return
    with suppress(OSError):
        (folder / _OF).write_bytes(os.fsencode(root.resolve()))
    for other in SHARED_MEMORY.glob(f"agentcache-{os.geteuid()}-*"):
        with suppress(OSError, StoreError):
            if not os.path.lexists(os.fsdecode((other / _OF).read_bytes())):
                left = Root(other)
                left.delete_if_unused()
                left.close()


Loaded = tuple[Head, EntryInfo, torch.Tensor]


class Mappings:
    """Files that were read a moment ago stay mapped, up to `budget_bytes`: mapping takes as long as copying does.

    They hold their locks meanwhile, so other processes cannot evict them: not for longer than `_KEPT_S`.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes, self._bytes = budget_bytes, 0
        self._lock = Lock()
        self._kept: OrderedDict[Path, tuple[Loaded, float]] = OrderedDict()

    def get(self, path: Path) -> Loaded | None:
        with self._lock:
            found = self._kept.pop(path, None)
            if found is None:
                return None
            self._kept[path] = (found[0], time.monotonic())
            return found[0]

    def add(self, path: Path, loaded: Loaded) -> None:
        with self._lock:
            if path not in self._kept and loaded[2].nbytes <= self._budget_bytes:
                self._kept[path] = (loaded, time.monotonic())
                self._bytes += loaded[2].nbytes
                while self._bytes > self._budget_bytes:
                    self._bytes -= self._kept.popitem(last=False)[1][0][2].nbytes

    def drop(self, path: Path) -> None:
        with self._lock:
            found = self._kept.pop(path, None)
            if found is not None:
                self._bytes -= found[0][2].nbytes

    def drop_old(self) -> None:
        """Let go of what has not been read for a while."""
        before = time.monotonic() - _KEPT_S
        with self._lock:
            while self._kept and next(iter(self._kept.values()))[1] < before:
                self._bytes -= self._kept.popitem(last=False)[1][0][2].nbytes

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
            self._bytes = 0


class RamTier(DiskTier):
    """As `DiskTier`. What `read` returns shares the tier's memory: an entry stays for as long as it is held."""

    name = "ram"

    def __init__(
        self,
        root: Root,
        model: str,
        layout: EntryLayout,
        budget_bytes: int,
        policy: EvictionPolicy,
        errors: Counts,
    ) -> None:
        self._maps = Mappings(budget_bytes // 8)  # before the tier is opened: that may evict
        super().__init__(root, model, layout, budget_bytes, policy, errors)

    def tick(self) -> None:
        super().tick()
        self._maps.drop_old()

    def drop_mappings(self) -> None:
        """Hold nothing but what callers hold."""
        self._maps.clear()

    def close(self) -> None:
        super().close()
        self._maps.clear()
        self._root.delete_if_unused()
        self._root.close()

    def _load(self, path: Path) -> Loaded:
        found = self._maps.get(path)
        if found is None:
            found = self._map(path)
            self._maps.add(path, found)
        return found

    def _map(self, path: Path) -> Loaded:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH)  # belongs to the open file, which the mapping keeps open
            head, info = map_info(fd, path)
            memory = mmap.mmap(fd, 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
        finally:
            os.close(fd)
        with suppress(OSError):
            memory.madvise(_MADV_POPULATE_READ)
        body = torch.frombuffer(memory, dtype=torch.uint8, offset=head.start, count=head.kv_bytes)
        return head, info, head.trust(body)

    def _save(self, path: Path, buffers: list[memoryview]) -> None:
        write_file(path, self._root.scratch, buffers, durable=False)

    def _spare(self, path: Path) -> bool:
        self._maps.drop(path)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return True
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        else:
            return super()._spare(path)
        finally:
            os.close(fd)
