"""Bringing an index up to date: look at what is there, read what differs, parse what is new, write, report.

A full update is the truth: it looks at every file. A partial one looks at the paths it is given, for a
watcher that was just told of them; anything it cannot judge by itself makes it a full one.
"""

from __future__ import annotations

import os
import stat
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from agentcache.errors import IndexError_
from agentcache.indexer import policy, reader
from agentcache.indexer.changes import change_record
from agentcache.indexer.checkout import Checkout
from agentcache.indexer.database import Database
from agentcache.indexer.discover import Listing, discover
from agentcache.indexer.identity import content_id
from agentcache.indexer.ignore import AGENTCACHE_IGNORE, GIT_IGNORE
from agentcache.indexer.languages import detect_language
from agentcache.indexer.load import LeftOut, Loaded, Trouble, load
from agentcache.indexer.pool import Job, parse_all
from agentcache.indexer.reader import FileRow
from agentcache.indexer.records import ChangeRecord, Progress
from agentcache.indexer.settings import IndexSettings
from agentcache.indexer.writer import Writer

OnProgress = Callable[[Progress], None]

_PROGRESS_EVERY_S = 0.05
_RULE_FILES = frozenset((GIT_IGNORE, AGENTCACHE_IGNORE, ".gitmodules"))


class Outcome(NamedTuple):
    """What an update did. `full`: it looked at everything; `changes` is empty if nobody wanted them."""

    full: bool
    parsed_files: int
    unchanged_files: int
    changes: list[ChangeRecord]


class Update:
    """One update of one index. Use once: `run()`."""

    def __init__(
        self,
        root: Path,
        database: Database,
        settings: IndexSettings,
        find_checkout: Callable[[], Checkout | None],
        *,
        on_progress: OnProgress | None = None,
        want_changes: bool = True,
    ) -> None:
        self._root = root
        self._database = database
        self._settings = settings
        self._find_checkout = find_checkout
        self._on_progress = on_progress
        self._want_changes = want_changes
        self._started = time.monotonic()
        self._last_progress = 0.0
        self._done = Counter[str]()
        self._problems: dict[str, str] = {}
        self._gone: list[str] = []
        self._changed: dict[str, tuple[int | None, int | None]] = {}
        self._waiting: defaultdict[tuple[str, str], list[tuple[str, Loaded]]] = defaultdict(list)
        self._full = False
        self._num_parsed = 0
        self._num_unchanged = 0

    def run(self, only: Iterable[str] | None = None) -> Outcome:
        """Update everything, or the paths in `only` (posix, below the root) if they can be judged alone.

        IndexError_ if the root cannot be listed.
        """
        with self._database.updating():
            known = None if only is None else self._judge_alone(set(only))
            if known is None:
                self._update_all()
            else:
                self._update_known(known)
            return Outcome(self._full, self._num_parsed, self._num_unchanged, list(self._changes()))

    def _judge_alone(self, paths: set[str]) -> dict[str, FileRow] | None:
        """The rows of those `paths` that are indexed files; None if one may change what else is indexed.

        Left-out paths, and new ones that are gone already, need no look.
        """
        known = {}
        connection = self._database.connection
        for path in paths:
            if path.rpartition("/")[2] in _RULE_FILES:
                return None
            row = reader.file_row(connection, path)
            if row is not None:
                known[path] = row
            elif os.path.lexists(self._root / path) and not reader.is_left_out(connection, path):
                return None
        return known

    def _update_known(self, known: dict[str, FileRow]) -> None:
        listing = Listing()
        folders = {path.rpartition("/")[0] for path in known}
        if any(_is_behind_a_link(self._root, folder) for folder in folders):
            return self._update_all()
        for path in known:
            try:
                info = os.lstat(self._root / path)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError:
                info = None
            if info is None or not stat.S_ISREG(info.st_mode) or info.st_size > self._settings.max_file_bytes:
                # It may have become anything: only a full look tells what.
                return self._update_all()
            listing.files[path] = info
        self._apply(listing, known, None)
        return None

    def _update_all(self) -> None:
        self._full = True
        try:
            listing = discover(self._root, self._settings, self._find_checkout())
        except OSError as error:
            raise IndexError_(
                f"{self._root} cannot be listed ({(error.strerror or str(error)).lower()}): "
                "give the path of a folder that exists and may be read"
            ) from error
        self._problems = listing.problems
        self._apply(listing, reader.file_rows(self._database.connection), listing.skipped)

    def _apply(self, listing: Listing, known: dict[str, FileRow], skipped: dict[str, str] | None) -> None:
        """Make the rows in `known` agree with `listing`."""
        writer = Writer(self._database)
        todo = {path: info for path, info in listing.files.items() if not _is_current(known.get(path), info)}
        self._num_unchanged = len(listing.files) - len(todo)
        self._done["total_files"] = len(todo)
        self._done["total_bytes"] = sum(info.st_size for info in todo.values())
        self._tell(force=True)
        # Closed at once when we are interrupted, and with it the workers.
        with closing(parse_all(self._jobs(todo, known, writer), self._settings.num_workers)) as results:
            for job, parsed in results:
                content = writer.add_content(*job.key, len(job.data), parsed)
                for path, loaded in self._waiting.pop(job.key):
                    self._attach(path, loaded, content, known, writer)
        for path in known.keys() - listing.files.keys():
            self._gone.append(path)
            self._note_change(path, known[path].content, None)
        writer.finish(self._gone, skipped, self._problems)
        self._tell(force=True)

    def _jobs(
        self, todo: dict[str, os.stat_result], known: dict[str, FileRow], writer: Writer
    ) -> Iterator[Job]:
        """Read each file, and yield those whose bytes were never parsed."""
        root = str(self._root)
        for path in todo:
            found = load(root, path, self._settings.max_file_bytes)
            if isinstance(found, Trouble):
                if not found.gone:
                    self._problems[path] = found.reason
                if path in known:
                    self._gone.append(path)
                    self._note_change(path, known[path].content, None)
                continue
            if isinstance(found, LeftOut):
                self._leave_out(path, todo[path], found.reason, False, known, writer)
                continue
            language = detect_language(path, found.data)
            reason = policy.content_reason(found.data, language)
            if reason is not None:
                self._leave_out(path, found.info, reason, found.racy, known, writer)
                continue
            key = (content_id(found.data), language)
            content = writer.known_content(*key)
            if content is not None:
                self._attach(path, found, content, known, writer)
                continue
            self._waiting[key].append((path, found))
            if len(self._waiting[key]) == 1:
                yield Job(key, language, found.data)

    def _attach(
        self, path: str, loaded: Loaded, content: int, known: dict[str, FileRow], writer: Writer
    ) -> None:
        old = known.get(path)
        writer.put_file(path, _row(content, "", loaded.info, loaded.racy))
        if old is not None and old.content == content:
            self._num_unchanged += 1
        else:
            self._num_parsed += 1
            self._note_change(path, old.content if old else None, content)
        self._done["files"] += 1
        self._done["bytes"] += len(loaded.data)
        self._tell()

    def _leave_out(
        self,
        path: str,
        info: os.stat_result,
        reason: str,
        racy: bool,
        known: dict[str, FileRow],
        writer: Writer,
    ) -> None:
        old = known.get(path)
        writer.put_file(path, _row(None, reason, info, racy))
        self._note_change(path, old.content if old else None, None)
        self._done["files"] += 1
        self._done["bytes"] += info.st_size
        self._tell()

    def _note_change(self, path: str, old: int | None, new: int | None) -> None:
        if self._want_changes and old != new:
            self._changed[path] = (old, new)

    def _changes(self) -> Iterator[ChangeRecord]:
        connection = self._database.connection
        for path, (old, new) in sorted(self._changed.items()):
            before = reader.content_blocks(connection, old, path) if old is not None else []
            after = reader.content_blocks(connection, new, path) if new is not None else []
            record = change_record(path, before, after)
            if record.added or record.removed:
                yield record

    def _tell(self, force: bool = False) -> None:
        if self._on_progress is None:
            return
        now = time.monotonic()
        if force or now - self._last_progress > _PROGRESS_EVERY_S:
            self._last_progress = now
            done = self._done
            self._on_progress(
                Progress(
                    done["files"],
                    done["total_files"],
                    done["bytes"],
                    done["total_bytes"],
                    now - self._started,
                )
            )


def _is_behind_a_link(root: Path, folder: str) -> bool:
    """Whether a folder that was indexed, or one above it, has become a link: what is behind it may be outside."""
    full = os.path.join(root, folder) if folder else str(root)
    return os.path.realpath(full) != full


def _is_current(row: FileRow | None, info: os.stat_result) -> bool:
    return row is not None and row.matches(info)


def _row(content: int | None, reason: str, info: os.stat_result, racy: bool) -> FileRow:
    return FileRow(content, reason, info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino, racy)
