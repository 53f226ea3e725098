"""The file under the index: opening, refusing, rebuilding, and one connection a thread."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentcache.errors import IndexError_
from agentcache.indexer.schema import TABLES, VERSION, migrate
from agentcache.paths import ensure_private

_BUSY_TIMEOUT_S = 60.0


class Database:
    """An index file, 0600, WAL. Any thread may use it; readers never wait, writers take turns."""

    def __init__(self, path: Path) -> None:
        """Open `path`, making it if need be. IndexError_ if it is a newer program's or cannot be opened."""
        self.path = path
        self._local = threading.local()
        self._connections: list[sqlite3.Connection] = []
        self._guard = threading.Lock()
        self._closed = False
        self.generation = 0
        try:
            ensure_private(path.parent)
            if not self._is_current():
                with self.updating():
                    self._make_current()
        except (OSError, sqlite3.OperationalError) as error:
            raise IndexError_(
                f"cannot open the index {path} ({error}): check the folder's rights and space"
            ) from error

    @property
    def connection(self) -> sqlite3.Connection:
        """This thread's connection, in autocommit mode."""
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None or getattr(self._local, "generation", -1) != self.generation:
            connection = self._connect()
            self._local.connection = connection
            self._local.generation = self.generation
        return connection

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A write transaction; rolled back if the body raises."""
        connection = self.connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")

    @contextmanager
    def updating(self) -> Iterator[None]:
        """Held by the one process and thread that updates the index; others wait, readers do not."""
        handle = os.open(f"{self.path}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def is_being_updated(self) -> bool:
        """Whether somebody holds `updating` right now."""
        handle = os.open(f"{self.path}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
        return False

    def rebuild(self) -> None:
        """Throw a damaged file away and start an empty one, unless somebody else just did."""
        generation = self.generation
        with self.updating():
            if self.generation == generation:
                self._recreate()

    def close(self) -> None:
        """Close every thread's connection. Twice is fine."""
        with self._guard:
            self._closed = True
            for connection in self._connections:
                connection.close()
            self._connections.clear()

    def _connect(self) -> sqlite3.Connection:
        with self._guard:
            if self._closed:
                raise IndexError_(f"the index {self.path} is closed: open it again")
            # Created here, because SQLite would create it readable by others; -wal and -shm take its mode.
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
            connection = sqlite3.connect(
                self.path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
            self._connections.append(connection)
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA cache_size = -32000")
        connection.execute("PRAGMA temp_store = MEMORY")
        return connection

    def _is_current(self) -> bool:
        """Whether the file can be used as it is; looks without a lock, so that opening waits for nobody.

        IndexError_ if it is a newer program's.
        """
        try:
            connection = self.connection
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version > VERSION:
                raise IndexError_(
                    f"the index {self.path} was written by a newer agentcache (format {version}, "
                    f"this one knows {VERSION}): update agentcache, or delete the file to index again"
                )
            for table in TABLES if version == VERSION else ():
                connection.execute(f"SELECT * FROM {table} LIMIT 1").fetchone()
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            return False
        return bool(version == VERSION)

    def _make_current(self) -> None:
        """Under the lock: make what is there usable, or start anew if it is beyond that."""
        if self._is_current():
            return
        try:
            self._migrate()
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            self._recreate()
            return
        if not self._is_current():
            self._recreate()

    def _migrate(self) -> None:
        self.connection.execute("PRAGMA journal_mode = WAL")
        migrate(self.connection)

    def _recreate(self) -> None:
        with self._guard:
            for connection in self._connections:
                connection.close()
            self._connections.clear()
            self.generation += 1
        for suffix in ("", "-wal", "-shm"):
            Path(f"{self.path}{suffix}").unlink(missing_ok=True)
        self._migrate()


def is_damage(error: sqlite3.DatabaseError) -> bool:
    """Whether an error means that the file is broken, and not that it is busy, full or out of reach."""
    if isinstance(error, sqlite3.OperationalError):
        return "no such table" in str(error) or "no such column" in str(error)
    return not isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError | sqlite3.InterfaceError)
