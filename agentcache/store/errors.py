"""What a read can fail with, and the words failures are counted under."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Sequence

from agentcache.errors import StoreError


class EntryMissing(StoreError):
    """No tier holds the entry, or its file cannot be opened at the moment: compute it."""


class EntryCorrupt(StoreError):
    """The entry's file was not what was written. It is out of service by now: compute it again."""


class WriteRefused(Exception):
    """A tier did not take an entry. `reason` is a short word to count; the caller goes on without it.

    evicted: ids that had to go before the write failed
    """

    def __init__(self, reason: str, evicted: Sequence[str] = ()) -> None:
        super().__init__(reason)
        self.reason = reason
        self.evicted = list(evicted)

    @property
    def by_budget(self) -> bool:
        """Whether a budget was in the way, as opposed to a fault."""
        return "budget" in self.reason


_REASONS = {
    errno.ENOSPC: "disk_full",
    errno.EDQUOT: "disk_full",
    errno.EFBIG: "disk_full",
    errno.EROFS: "read_only",
    errno.EACCES: "no_permission",
    errno.EPERM: "no_permission",
    errno.EMFILE: "too_many_files",
    errno.ENFILE: "too_many_files",
}


def reason_of(error: OSError) -> str:
    """The word an operating system error is counted under ("io_error" for the rare ones)."""
    return _REASONS.get(error.errno or 0, "io_error")


def catalog_reason(error: sqlite3.Error) -> str:
    """The word an error of the catalog's database is counted under."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    names = {
        sqlite3.SQLITE_FULL: "disk_full",
        sqlite3.SQLITE_READONLY: "read_only",
        sqlite3.SQLITE_IOERR: "io_error",
    }
    return names.get(code, "catalog")
