"""Reading and writing one entry file: whole or not at all, verified on every read."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from xxhash import xxh3_128

from agentcache.entry import EntryInfo
from agentcache.store.buffers import buffer
from agentcache.store.errors import EntryCorrupt
from agentcache.store.format import PAGE, Head, buffer_of, decode_head, decode_tokens, header_bytes
from agentcache.store.root import make_private, sync_folder

if TYPE_CHECKING:
    from collections.abc import Iterator


_CHUNK = 1 << 20
_AT_ONCE = 2
_READERS = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="agentcache-read")


def write_file(path: Path, scratch: Path, buffers: Sequence[memoryview], *, durable: bool = True) -> None:
    """Write `buffers` to `path`: readers see nothing or all of it. OSError leaves nothing behind."""
    temporary = scratch / path.name
    try:
        with open(temporary, "xb", buffering=0, opener=_private) as file:
            for buffer in buffers:
                done = _write_past_cache(file.fileno(), buffer) if durable else 0
                while done < len(buffer):
                    done += file.write(buffer[done:])
            if durable:
                os.fsync(file.fileno())
        make_private(path.parent)
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    if durable:
        sync_folder(path.parent)


def _write_past_cache(fd: int, buffer: memoryview) -> int:
    """Write the whole pages of `buffer` straight from its memory, where that can be done; how many bytes were written.

    A copy in the page cache costs the processor several times what the rest of writing does, takes memory from
    others, and is hardly ever read: the RAM tier holds the entry.
    """
    size = _whole_pages(buffer, os.lseek(fd, 0, os.SEEK_CUR))
    if not size or not _past_cache(fd, True):
        return 0
    try:
        return os.write(fd, buffer[:size])
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return 0  # this file system cannot
    finally:
        _past_cache(fd, False)


def _whole_pages(buffer: memoryview, offset: int) -> int:
    """How many bytes of `buffer` can go past the page cache, to or from `offset` of a file; 0 if it is not worth it."""
    size = len(buffer) // PAGE * PAGE
    return size if size >= _CHUNK and not _address(buffer) % PAGE and not offset % PAGE else 0


def _past_cache(fd: int, past: bool) -> bool:
    """Read and write past the page cache from now on, or through it. False if nothing was changed."""
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    wanted = flags | os.O_DIRECT if past else flags & ~os.O_DIRECT
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, wanted)
    except OSError:
        return False  # this file system cannot
    return wanted != flags


def _address(buffer: memoryview) -> int:
    return int(np.frombuffer(buffer, np.uint8).ctypes.data)


def read_file(path: Path) -> tuple[Head, EntryInfo, torch.Tensor]:
    """An entry with its K/V in a tensor of its own. EntryCorrupt, UnknownFormat, or OSError."""
    with _opened(path) as (fd, size):
        head = _read_head(fd, size)
        info = _read_info(fd, head)
        body = buffer(head.kv_bytes)
        checksum = xxh3_128()
        memory = buffer_of(body)
        # Half as fast again as through the page cache; what is read often is kept by the RAM tier.
        whole = _whole_pages(memory, head.start)
        _past_cache(fd, whole > 0)
        for piece in _pieces(fd, memory[:whole], head.start):
            checksum.update(piece)
        _past_cache(fd, False)
        for piece in _pieces(fd, memory[whole:], head.start + whole):
            checksum.update(piece)
        if checksum.hexdigest() != head.checksum:
            raise EntryCorrupt(f"the K/V in {path.name} changed since it was written")
        return head, info, head.trust(body)


def read_info(path: Path) -> tuple[Head, EntryInfo]:
    """What the file says of its entry, verified, without reading the K/V. Errors as `read_file`."""
    with _opened(path) as (fd, size):
        head = _read_head(fd, size)
        return head, _read_info(fd, head)


def map_info(fd: int, path: Path) -> tuple[Head, EntryInfo]:
    """As `read_info`, of an open file."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise EntryCorrupt(f"{path.name} is not a file")
    head = _read_head(fd, status.st_size)
    return head, _read_info(fd, head)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[int, int]]:
    """File descriptor and size of a regular file; anything else in its place is corrupt."""
    if path.is_symlink():
        raise EntryCorrupt(f"{path.name} is a link")
    fd = os.open(
        path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
    )  # NONBLOCK: a pipe must not stop the engine
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise EntryCorrupt(f"{path.name} is not a file")
        yield fd, status.st_size
    finally:
        os.close(fd)


def _read_head(fd: int, size: int) -> Head:
    raw = os.pread(fd, PAGE, 0)
    length = header_bytes(raw)
    if length > PAGE:
        raw += os.pread(fd, length - PAGE, PAGE)
    if length > size or len(raw) < length:
        raise EntryCorrupt("an entry file ends inside its header")
    head = decode_head(raw[:length])
    if head.file_bytes != size:
        raise EntryCorrupt(f"an entry file has {size} bytes instead of {head.file_bytes}")
    return head


def _read_info(fd: int, head: Head) -> EntryInfo:
    raw = bytearray(4 * head.num_tokens)
    _fill(fd, memoryview(raw), head.start + head.kv_bytes)
    return head.info(decode_tokens(bytes(raw)))


def _pieces(fd: int, memory: memoryview, offset: int) -> Iterator[memoryview]:
    """`memory`, filled from the file, piece by piece; the next two are on their way meanwhile."""
    starts = range(0, len(memory), _CHUNK)
    if len(starts) == 1:
        yield _fill(fd, memory, offset)
        return
    coming: deque[Future[memoryview]] = deque()
    try:
        for at in starts:
            coming.append(_READERS.submit(_fill, fd, memory[at : at + _CHUNK], offset + at))
            if len(coming) > _AT_ONCE:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()
    finally:
        wait(coming)  # nobody may write to this memory, or read this file, any more


def _fill(fd: int, buffer: memoryview, offset: int) -> memoryview:
    """`buffer`, read from the file."""
    done, again = 0, True
    while done < len(buffer):
        try:
            count = os.preadv(fd, [buffer[done:]], offset + done)
        except OSError as error:
            if error.errno != errno.EINVAL or not again:
                raise
            again = False
            _past_cache(fd, False)  # this file system cannot, or not from here on
            continue
        if count == 0:
            raise EntryCorrupt("an entry file was cut while it was read")
        done += count
    return buffer


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
