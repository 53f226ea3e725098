"""File events of a folder tree, from watchdog, as hints: which paths may have changed, or that all may have.

watchdog loses events without a word (`overflow`), and floods itself unless it is told to leave opens and
closes out. So nothing is believed: the watcher looks at the disk for everything it is told here.
"""

from __future__ import annotations

import logging
import os
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from watchdog.events import (
    DirCreatedEvent,
    DirDeletedEvent,
    DirMovedEvent,
    FileCreatedEvent,
    FileDeletedEvent,
    FileModifiedEvent,
    FileMovedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers import Observer

_FILTER: list[type[FileSystemEvent]] = [
    FileModifiedEvent,
    FileCreatedEvent,
    FileDeletedEvent,
    FileMovedEvent,
    DirCreatedEvent,
    DirDeletedEvent,
    DirMovedEvent,
]
_WATCH_LIMIT_FILE = Path("/proc/sys/fs/inotify/max_user_watches")
_LIMIT_SHARE = 0.75
"""Other programs of the user draw on the same limit."""


class Hints(NamedTuple):
    """Paths (posix, below the root) that may have changed; `everything`: so may have anything else."""

    paths: set[str]
    everything: bool


class CannotWatch(Exception):
    """Events are not to be had here; the message says why."""


class EventSource:
    """Collects hints for one root until `stop`. `wake` is called, from any thread, whenever there is one."""

    def __init__(self, root: Path, wake: Callable[[], None]) -> None:
        self._root = root
        self._prefix = f"{root}/"
        self._wake = wake
        self._lock = threading.Lock()
        self._paths: set[str] = set()
        self._everything = False
        self._observer = Observer()
        self._log = _LogHandler(self._lost)

    def start(self) -> None:
        """Watch the tree. CannotWatch if there are more folders than watches, or no watch is to be had."""
        limit = watch_limit()
        if limit is not None and has_more_folders(self._root, limit):
            raise CannotWatch(f"more folders than the {limit} that inotify may watch here")
        # Races with folders that come and go are this module's daily bread, and reconciled.
        warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"watchdog\.")
        logging.getLogger("watchdog.observers").addHandler(self._log)
        try:
            self._observer.schedule(
                _Handler(self._add), str(self._root), recursive=True, event_filter=_FILTER
            )
            self._observer.start()
        except (OSError, RuntimeError) as error:
            self.stop()
            raise CannotWatch(str(error)) from error

    def take(self) -> Hints:
        """What was hinted at since the last call."""
        with self._lock:
            hints = Hints(self._paths, self._everything)
            self._paths, self._everything = set(), False
            return hints

    def stop(self) -> None:
        """Stop watching. Twice is fine, and so is before `start`."""
        logging.getLogger("watchdog.observers").removeHandler(self._log)
        if self._observer.is_alive():
            self._observer.stop()
            self._observer.join()

    def _add(self, event: FileSystemEvent) -> None:
        places = [os.fsdecode(place) for place in (event.src_path, event.dest_path) if place]
        below = [place.removeprefix(self._prefix) for place in places if place.startswith(self._prefix)]
        paths = [path for path in below if not is_internal(path)]
        moved_head = any(path == ".git/HEAD" for path in below)
        gone = any(place == str(self._root) for place in places)
        if not paths and not moved_head and not gone:
            return
        with self._lock:
            if event.is_directory or moved_head or gone:
                self._everything = True
            else:
                self._paths.update(paths)
        self._wake()

    def _lost(self) -> None:
        with self._lock:
            self._everything = True
        self._wake()


class _Handler(FileSystemEventHandler):
    def __init__(self, add: Callable[[FileSystemEvent], None]) -> None:
        self._add = add

    def on_any_event(self, event: FileSystemEvent) -> None:
        self._add(event)


class _LogHandler(logging.Handler):
    """The one place where watchdog says that it lost events."""

    def __init__(self, lost: Callable[[], None]) -> None:
        super().__init__(logging.WARNING)
        self._lost = lost

    def emit(self, record: logging.LogRecord) -> None:
        self._lost()


def is_internal(path: str) -> bool:
    """Whether `path` is version control's own."""
    return path == ".git" or path.startswith(".git/") or "/.git/" in path or path.endswith("/.git")


def watch_limit() -> int | None:
    """Folders that this user may watch, less a share for others; None where there is no such limit."""
    try:
        return int(int(_WATCH_LIMIT_FILE.read_text()) * _LIMIT_SHARE)
    except (OSError, ValueError):
        return None


def has_more_folders(root: Path, limit: int) -> bool:
    """Whether there are more than `limit` folders below `root`; stops counting there."""
    count = 1
    pending = [str(root)]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                below = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError:
            continue
        count += len(below)
        if count > limit:
            return True
        pending += below
    return False
