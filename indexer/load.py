"""Reading one file as it is at one moment, or saying why not."""

from __future__ import annotations

import os
import stat
import time
from typing import NamedTuple

from agentcache.indexer import policy

_TRIES = 4
_PAUSE_S = 0.01


class Loaded(NamedTuple):
    """A file's bytes, and the stat that they were read under.

    `racy`: it was written so shortly before that a later write may leave an equal stat.
    """

    data: bytes
    info: os.stat_result
    racy: bool


class LeftOut(NamedTuple):
    """A file that is not to be read after all. `reason` is a key of `policy.REASONS`."""

    reason: str


class Trouble(NamedTuple):
    """A file that cannot be read; `reason` is for people. `gone`: there is no such file any more."""

    reason: str
    gone: bool = False


def load(root: str, path: str, max_bytes: int) -> Loaded | LeftOut | Trouble:
    """The bytes of the file `path` below `root`. Follows no link, waits for no writer, never raises."""
    for attempt in range(_TRIES):
        try:
            handle = os.open(f"{root}/{path}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return Trouble("it is gone", gone=True)
        except OSError as error:
            return Trouble(f"cannot be read: {(error.strerror or str(error)).lower()}")
        try:
            before = os.fstat(handle)
            if not stat.S_ISREG(before.st_mode):
                return LeftOut(policy.SPECIAL)
            if before.st_size > max_bytes:
                return LeftOut(policy.TOO_LARGE)
            data = _read(handle, max_bytes)
            after = os.fstat(handle)
        except OSError as error:
            return Trouble(f"cannot be read: {(error.strerror or str(error)).lower()}")
        finally:
            os.close(handle)
        if len(data) == after.st_size and _same(before, after):
            return Loaded(data, after, _is_racy(after, time.time_ns()))
        time.sleep(_PAUSE_S * attempt)
    return Trouble("it kept changing while it was read")


def _read(handle: int, max_bytes: int) -> bytes:
    parts = []
    size = 0
    while size <= max_bytes and (part := os.read(handle, 1 << 20)):
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def _same(before: os.stat_result, after: os.stat_result) -> bool:
    return (before.st_size, before.st_mtime_ns, before.st_ctime_ns) == (
        after.st_size,
        after.st_mtime_ns,
        after.st_ctime_ns,
    )


def _is_racy(info: os.stat_result, now_ns: int) -> bool:
    """git's "racily clean": file systems keep times in steps, of a clock tick or of whole seconds."""
    whole_seconds = info.st_mtime_ns % 1_000_000_000 == 0 and info.st_ctime_ns % 1_000_000_000 == 0
    step_ns = 2_000_000_000 if whole_seconds else 50_000_000
    return now_ns - max(info.st_mtime_ns, info.st_ctime_ns) < step_ns
