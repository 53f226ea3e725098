"""The index of one root: what the rest of agentcache uses."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from blake3 import blake3

from agentcache import paths
from agentcache.errors import IndexError_
from agentcache.indexer import graph, reader
from agentcache.indexer.checkout import Checkout, find_checkout
from agentcache.indexer.collect import collect
from agentcache.indexer.database import Database, is_damage
from agentcache.indexer.identity import content_id
from agentcache.indexer.load import Loaded, load
from agentcache.indexer.records import (
    Block,
    ChangeRecord,
    FileRecord,
    IndexReport,
    Problem,
    Progress,
    Reference,
)
from agentcache.indexer.settings import MAX_FILE_BYTES, IndexSettings
from agentcache.indexer.update import Outcome, Update

T = TypeVar("T")

_LIMIT_KEY = "max_file_bytes"


def default_database(root: Path) -> Path:
    """Where the index of `root` is kept: one file a resolved root."""
    return paths.index_dir() / f"{blake3(bytes(root.resolve())).hexdigest()[:32]}.db"


def forget(db_path: Path) -> None:
    """Delete an index file, if there is one; whoever has it open goes on with what they have."""
    for suffix in ("", "-wal", "-shm"):
        Path(f"{db_path}{suffix}").unlink(missing_ok=True)


class Index:
    """Files and blocks of one root. Any thread may use it; other processes may use the same file.

    Reads see the last update and never wait for one. Every method raises IndexError_, with what to do next,
    if the index cannot be used; a damaged file is built again and the call goes on.
    """

    def __init__(self, root: Path, database: Database, settings: IndexSettings) -> None:
        self.root = root
        self.settings = settings
        self._database = database

    @classmethod
    def open(cls, root: Path, db_path: Path | None = None, settings: IndexSettings | None = None) -> Index:
        """Open the index of the folder `root`, empty if there was none.

        settings: if None, from the environment, and what `set_max_file_bytes` left

        IndexError_ if `root` is no folder, or the database is a newer program's or cannot be opened.
        """
        resolved = root.expanduser().resolve()
        if not resolved.is_dir():
            what = "is not a folder" if resolved.exists() else "does not exist"
            raise IndexError_(f"{root} {what}: give the path of a repository or folder")
        database = Database(db_path or default_database(resolved))
        if settings is None:
            limit = reader.meta(database.connection, _LIMIT_KEY)
            settings = IndexSettings.from_environment(int(limit) if limit else MAX_FILE_BYTES)
        return cls(resolved, database, settings)

    @property
    def db_path(self) -> Path:
        return self._database.path

    def set_max_file_bytes(self, limit: int) -> None:
        """Leave files larger than `limit` bytes out, from the next update on and in every later process."""
        self.settings = replace(self.settings, max_file_bytes=limit)
        with self._database.writing() as connection:
            connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (_LIMIT_KEY, str(limit)))

    def checkout(self) -> Checkout | None:
        """The git work tree that the root is in, if any."""
        return find_checkout(self.root)

    def update(
        self, progress: Callable[[Progress], None] | None = None, *, changes: bool = True
    ) -> IndexReport:
        """Bring the index up to date with the disk and say what was done.

        progress: called from this thread, a few times a second
        changes: whether the report lists what became of each changed file's blocks (it takes memory)
        """
        started = time.monotonic()
        outcome = self._run(None, progress, changes)
        num_files, num_blocks, num_bytes, languages = self.totals()
        return IndexReport(
            files=num_files,
            blocks=num_blocks,
            languages=languages,
            bytes=num_bytes,
            seconds=time.monotonic() - started,
            parsed_files=outcome.parsed_files,
            unchanged_files=outcome.unchanged_files,
            skipped=dict(sorted(Counter(reason for _, reason in self.left_out()).items())),
            errors=self.problems(),
            changes=outcome.changes,
        )

    def freshen(self, progress: Callable[[Progress], None] | None = None) -> bool:
        """Bring the index up to date before a question, unless somebody else is doing so already.

        False if somebody is, and there is something to read meanwhile: what the last update left.
        """
        if self._database.is_being_updated() and self.totals()[0]:
            return False
        self.update(progress, changes=False)
        return True

    def refresh(self, only: Iterable[str]) -> list[ChangeRecord]:
        """Bring these paths (posix, below the root) up to date, and whatever else they bear on.

        The quick way for who knows what changed: an edited file takes a few milliseconds.
        """
        return self._run(list(only), None, True).changes

    def _run(
        self, only: list[str] | None, progress: Callable[[Progress], None] | None, changes: bool
    ) -> Outcome:
        def run() -> Outcome:
            update = Update(
                self.root,
                self._database,
                self.settings,
                self.checkout,
                on_progress=progress,
                want_changes=changes,
            )
            outcome = update.run(only)
            if outcome.full:
                collect(self._database)
            return outcome

        try:
            return run()
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise IndexError_(
                    f"cannot write the index {self.db_path} ({error}): check rights and space"
                ) from error
            self._database.rebuild()
            return run()

    def files(self) -> list[FileRecord]:
        """Indexed files, by path."""
        return self._read(reader.files)

    def file(self, path: str) -> FileRecord | None:
        """One indexed file; None if it is not indexed."""
        return self._read(lambda connection: reader.file_record(connection, path))

    def blocks(self, path: str) -> list[Block]:
        """Blocks of a file in file order; they tile it. IndexError_ if the file is not indexed."""
        return self._held(path)[1]

    def read(self, path: str) -> bytes:
        """The bytes that `blocks(path)` tile. IndexError_ if the file is not indexed or has changed since."""
        return self.snapshot(path)[0]

    def snapshot(self, path: str) -> tuple[bytes, list[Block]]:
        """A file's bytes and the blocks that tile them, whatever updates go on meanwhile.

        IndexError_ if the file is not indexed or has changed since.
        """
        held, blocks = self._held(path)
        found = load(str(self.root), path, self.settings.max_file_bytes)
        if not isinstance(found, Loaded) or content_id(found.data) != held:
            raise IndexError_(
                f"{path} has changed since it was indexed: run `agentcache index` and try again"
            )
        return found.data, blocks

    def _held(self, path: str) -> tuple[str, list[Block]]:
        """Content id and blocks of a file."""

        def query(connection: sqlite3.Connection) -> tuple[str, list[Block]] | None:
            row = reader.file_row(connection, path)
            if row is None or row.content is None:
                return None
            held = reader.held_content_id(connection, row.content)
            return (held, reader.content_blocks(connection, row.content, path)) if held else None

        found = self._read(query)
        if found is None:
            raise IndexError_(
                f"{path} is not in the index of {self.root}: see `agentcache status` for what is left out"
            )
        return found

    def find(self, name: str) -> list[Block]:
        """Blocks in which `name` is defined ("method", "Class.method"), by path; [] if nowhere."""
        return self._read(lambda connection: reader.find(connection, name))

    def refs(self, name: str) -> list[Reference]:
        """Lines that mention `name`, by path and line; definitions are no mentions."""
        return self._read(lambda connection: reader.references(connection, name))

    def similar_names(self, text: str, limit: int = 10) -> list[str]:
        """Defined names that contain `text` in any case, shortest first; [] below three letters."""
        return self._read(lambda connection: reader.similar_names(connection, text, limit))

    def importance(self) -> dict[str, float]:
        """How much the rest of the repository leans on each file, most first; the values add up to 1."""
        return self._read(graph.importance)

    def neighbours(self, path: str, limit: int = 8) -> list[str]:
        """Files that use names of `path` or define names that it uses, the closest first."""
        return self._read(lambda connection: graph.neighbours(connection, path, limit))

    def left_out(self) -> list[tuple[str, str]]:
        """(path, reason) of what is not indexed; a folder ends with a slash and counts once."""
        return self._read(lambda connection: list(reader.left_out(connection)))

    def problems(self) -> list[Problem]:
        """Files in trouble, one line each."""
        return self._read(reader.problems)

    def totals(self) -> tuple[int, int, int, dict[str, int]]:
        """Files, blocks, bytes, and files by language."""
        return self._read(reader.totals)

    def num_different_blocks(self) -> int:
        """Blocks of indexed files, equal ones counted once."""
        return self._read(reader.num_different_blocks)

    def close(self) -> None:
        """Close the database. Twice is fine."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return query(self._database.connection)
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise IndexError_(
                    f"cannot read the index {self.db_path} ({error}): check rights and space"
                ) from error
            self._database.rebuild()
            self.update(changes=False)
            return query(self._database.connection)
