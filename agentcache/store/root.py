"""The store's folder: who may be in it, where an entry's file lies, where files are written at first.

    <root>/lock                    held while a process opens or repairs the store
    <root>/catalog.db              what is here (`catalog.py`)
    <root>/tmp/<owner>/            one a process that has the store open; its `lock` is held while it lives
    <root>/<model>/<salt>/<ab>/<id>.safetensors

Folders are 0700, files 0600. A root that cannot be written is opened for reading.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from blake3 import blake3

from agentcache.errors import StoreError
from agentcache.store.errors import reason_of

SUFFIX = ".safetensors"
SHARED = "shared"


def model_folder(model: str) -> str:
    return model[:16]


def salt_folder(salt: str) -> str:
    """A salt may be a secret: its folder is named by a digest."""
    return SHARED if salt == "" else blake3(salt.encode()).hexdigest(16)


class Root:
    """`path`, opened. `refusal`: why it cannot be written (a word to count), "" if it can."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.owner = uuid.uuid4().hex
        self.refusal = ""
        self._owner_lock = -1
        self.acquire()
        try:
            os.scandir(path).close()
        except OSError as error:
            self.close()
            raise StoreError(
                f"the store at {path} cannot be opened ({error.strerror}): "
                "set AGENTCACHE_HOME to a folder of yours"
            ) from error

    def acquire(self) -> None:
        """Get ready to write, and set `refusal` to what is in the way, if anything is. May be tried again."""
        self.refusal = ""
        if self._owner_lock >= 0:
            return
        try:
            make_private(self.path)
            with self.exclusive():
                make_private(self.scratch)
                self._owner_lock = _open_lock(self.scratch / "lock")
                fcntl.flock(self._owner_lock, fcntl.LOCK_EX)
        except OSError as error:
            self.close()
            self.refusal = reason_of(error)

    @property
    def scratch(self) -> Path:
        """Where this process writes files before it moves them to their place."""
        return self.path / "tmp" / self.owner

    def entry_path(self, model: str, salt: str, id: str) -> Path:
        return self.path / model_folder(model) / salt_folder(salt) / id[:2] / (id + SUFFIX)

    def salt_folders(self, model: str) -> list[str]:
        """Folder names of the salts that `model` has entries under, the shared one first."""
        try:
            names = os.listdir(self.path / model_folder(model))
        except OSError:
            return []
        return sorted(names, key=lambda name: name != SHARED)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """One process at a time: opening, repairing. Nothing is excluded where the root cannot be written."""
        if self.refusal:
            yield
            return
        lock = self._locked()
        try:
            yield
        finally:
            os.close(lock)

    def _locked(self) -> int:
        while True:
            make_private(self.path)
            lock = _open_lock(self.path / "lock")
            fcntl.flock(lock, fcntl.LOCK_EX)
            with suppress(OSError):
                if os.fstat(lock).st_ino == os.stat(self.path / "lock").st_ino:
                    return lock
            os.close(lock)  # the root was deleted while we waited (a RAM tier, when it was closed)

    def sweep(self) -> list[str]:
        """Delete what dead processes left half-written and return their names. Call inside `exclusive`."""
        dead: list[str] = []
        for folder in self._scratch_folders():
            if folder.name != self.owner and _is_free(folder / "lock"):
                shutil.rmtree(folder, ignore_errors=True)
                dead.append(folder.name)
        return dead

    def owners(self) -> set[str]:
        """Owner names that have a scratch folder."""
        return {folder.name for folder in self._scratch_folders()}

    def discard(self, path: Path) -> None:
        """Take whatever lies at `path` out of service, a folder too. OSError if that is impossible."""
        aside = self.scratch / uuid.uuid4().hex
        with suppress(FileNotFoundError):
            if path.is_dir() and not path.is_symlink():
                os.rename(path, aside)
                shutil.rmtree(aside, ignore_errors=True)
            else:
                os.unlink(path)

    def delete_if_unused(self) -> None:
        """Delete all of it, unless another process has it open."""
        with suppress(OSError), self.exclusive():
            self.sweep()
            if not self.owners() - {self.owner} and not self.refusal:
                shutil.rmtree(self.path, ignore_errors=True)

    def close(self) -> None:
        if self._owner_lock >= 0:
            shutil.rmtree(self.scratch, ignore_errors=True)
            os.close(self._owner_lock)
            self._owner_lock = -1

    def _scratch_folders(self) -> list[Path]:
        try:
            return [Path(entry.path) for entry in os.scandir(self.path / "tmp") if entry.is_dir()]
        except OSError:
            return []


def make_private(folder: Path) -> None:
    """Create `folder` and the parents it lacks, each readable by the user alone."""
    missing: list[Path] = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for new in reversed(missing):
        with suppress(FileExistsError):
            os.mkdir(new, 0o700)
            sync_folder(new.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _open_lock(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _is_free(path: Path) -> bool:
    try:
        lock = _open_lock(path)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(lock)
