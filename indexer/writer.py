"""Writing the index: rows are gathered and go in together, a few hundred files a transaction.

One writer at a time (`Database.updating`), which is why ids can be given out here.
"""

from __future__ import annotations

import sqlite3
import time

from agentcache.indexer.database import Database
from agentcache.indexer.parse import PARSER_VERSION, Parsed
from agentcache.indexer.reader import FileRow, to_key

_MAX_ROWS = 40_000
_MAX_AGE_S = 1.0
_FEW_NAMES = 400


class Writer:
    """Collects rows and writes them in short transactions. Nothing is seen by others before `flush`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        connection = database.connection
        self._next_content = _next_id(connection, "content")
        self._next_name: int | None = None
        self._names: dict[str, int] = {}
        self._names_complete = False
        self._fresh: dict[tuple[str, str], int] = {}
        self._contents: list[tuple[object, ...]] = []
        self._parsed: list[tuple[int, Parsed]] = []
        self._files: list[tuple[object, ...]] = []
        self._num_rows = 0
        self._since = time.monotonic()

    def known_content(self, content_id: str, language: str) -> int | None:
        """The content row of these bytes, if the current parser has been over them."""
        fresh = self._fresh.get((content_id, language))
        if fresh is not None:
            return fresh
        row = self._database.connection.execute(
            "SELECT id FROM content WHERE content_id = ? AND language = ? AND parser = ?",
            (content_id, language, PARSER_VERSION),
        ).fetchone()
        return row[0] if row else None

    def add_content(self, content_id: str, language: str, size: int, parsed: Parsed) -> int:
        """Keep what parsing gave; returns the content row."""
        content = self._next_content
        self._next_content += 1
        self._fresh[content_id, language] = content
        self._contents.append(
            (content, content_id, language, PARSER_VERSION, size, parsed.note, len(parsed.blocks))
        )
        self._parsed.append((content, parsed))
        self._num_rows += len(parsed.blocks) + len(parsed.names) + len(parsed.mentions)
        return content

    def put_file(self, path: str, row: FileRow) -> None:
        """Say what stands at `path` now."""
        self._files.append((to_key(path), *row))
        self._num_rows += 1
        if self._num_rows > _MAX_ROWS or time.monotonic() - self._since > _MAX_AGE_S:
            self.flush()

    def flush(self) -> None:
        """Write what was gathered."""
        if self._num_rows:
            with self._database.writing() as connection:
                self._write(connection)
            for rows in (self._contents, self._parsed, self._files):
                rows.clear()
            self._num_rows = 0
        self._since = time.monotonic()

    def finish(self, gone: list[str], left_out: dict[str, str] | None, problems: dict[str, str]) -> None:
        """Flush, forget the paths in `gone`, and say what is left out (None: as before) and in trouble."""
        self.flush()
        if not gone and left_out is None and not problems:
            return
        with self._database.writing() as connection:
            keys = [(to_key(path),) for path in gone]
            connection.executemany("DELETE FROM file WHERE path = ?", keys)
            if left_out is None:
                connection.executemany("DELETE FROM left_out WHERE path = ?", keys)
            else:
                connection.execute("DELETE FROM left_out")
                rows = [(to_key(path), reason, 0) for path, reason in left_out.items()]
                connection.executemany("INSERT OR REPLACE INTO left_out VALUES (?, ?, ?)", rows)
            rows = [(to_key(path), reason, 1) for path, reason in problems.items()]
            connection.executemany("INSERT OR REPLACE INTO left_out VALUES (?, ?, ?)", rows)

    def _write(self, connection: sqlite3.Connection) -> None:
        connection.executemany("INSERT INTO content VALUES (?, ?, ?, ?, ?, ?, ?)", self._contents)
        ids = self._name_ids(connection)
        connection.executemany(
            "INSERT INTO block VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                (content, ordinal, bytes.fromhex(block[0]), *block[1:])
                for content, parsed in self._parsed
                for ordinal, block in enumerate(parsed.blocks)
            ),
        )
        connection.executemany(
            "INSERT OR IGNORE INTO definition VALUES (?, ?, ?, ?, ?)",
            sorted(
                (ids[name], content, ordinal, line, kind)
                for content, parsed in self._parsed
                for name, kind, ordinal, line in parsed.names
            ),
        )
        connection.executemany(
            "INSERT INTO mention VALUES (?, ?, ?)",
            sorted(
                (ids[name], content, ",".join(map(str, lines)))
                for content, parsed in self._parsed
                for name, lines in parsed.mentions
            ),
        )
        connection.executemany("INSERT OR REPLACE INTO file VALUES (?, ?, ?, ?, ?, ?, ?, ?)", self._files)
        connection.executemany("DELETE FROM left_out WHERE path = ?", ((row[0],) for row in self._files))

    def _name_ids(self, connection: sqlite3.Connection) -> dict[str, int]:
        """Ids of every name in the batch; new ones are added, and made searchable."""
        wanted = {row.name for _, parsed in self._parsed for row in parsed.names}
        wanted.update(row.name for _, parsed in self._parsed for row in parsed.mentions)
        missing = [name for name in wanted if name not in self._names]
        if not self._names_complete and missing:
            if len(missing) > _FEW_NAMES:
                self._names = {text: key for key, text in connection.execute("SELECT id, text FROM name")}
                self._names_complete = True
            else:
                for name in missing:
                    row = connection.execute("SELECT id FROM name WHERE text = ?", (name,)).fetchone()
                    if row:
                        self._names[name] = row[0]
            missing = [name for name in wanted if name not in self._names]
        if self._next_name is None:
            self._next_name = _next_id(connection, "name")
        new = list(enumerate(sorted(missing), self._next_name))
        self._next_name += len(new)
        self._names.update((name, key) for key, name in new)
        connection.executemany("INSERT INTO name VALUES (?, ?)", new)
        connection.executemany("INSERT INTO name_search (rowid, text) VALUES (?, ?)", new)
        return self._names


def _next_id(connection: sqlite3.Connection, table: str) -> int:
    (highest,) = connection.execute(f"SELECT max(id) FROM {table}").fetchone()
    return (highest or 0) + 1
