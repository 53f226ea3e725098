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
import shutil
from contextlib import suppress
from pathlib import Path

import torch
from blake3 import blake3

from agentcache.entry import EntryInfo
from agentcache.store.disk import DiskTier
from agentcache.store.files import map_info, write_file
from agentcache.store.format import Head

SHARED_MEMORY = Path("/dev/shm")
_MADV_POPULATE_READ = 22  # Linux 5.14: map all pages in one call, instead of a fault for every 64 KiB


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


class RamTier(DiskTier):
    """As `DiskTier`. What `read` returns shares the tier's memory: an entry stays for as long as it is held."""

    name = "ram"

    def close(self) -> None:
        super().close()
        with suppress(OSError), self._root.exclusive():
            self._root.sweep()
            if not self._root.owners() - {self._root.owner} and not self._root.refusal:
                shutil.rmtree(self._root.path, ignore_errors=True)
        self._root.close()

    def _load(self, path: Path) -> tuple[Head, EntryInfo, torch.Tensor]:
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
