"""The catalog: what the files of a root hold, in SQLite, shared by every process that has the store open.

It is never believed where it matters: each row carries a checksum, files are verified when read, and all of
it can be rebuilt from the files. Every statement takes a lock: one for the engine's look-ups, one for
transactions.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import RLock
from typing import NamedTuple

from agentcache.errors import StoreError
from agentcache.store import schema
from agentcache.store.policy import Candidate
from agentcache.store.rows import COLUMNS, Row, decode_row, encode_row


class Victim(NamedTuple):
    """An entry that may be evicted: where its file is, and what a policy may know of it."""

    key: int
    model: str
    salt: str
    candidate: Candidate


class Orphan(NamedTuple):
    """A reservation whose process is gone: its entry's file is in place, or nowhere."""

    key: int
    model: str
    salt: str
    id: str


_USAGE = "SELECT COALESCE(SUM(entries), 0), COALESCE(SUM(bytes), 0) FROM usage WHERE ? IS NULL OR model = ?"
_INSERT = (
    f"INSERT INTO entries (model, {COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?,?,?,?) "
    "ON CONFLICT (model, id) DO UPDATE SET "
    + ", ".join(
        f"{c} = excluded.{c}" for c in ("context", "salt", "parent", "position", "tokens", "size", "checksum")
    )
)


class Catalog:
    """Opened by `Catalog.open` (a file) or `Catalog.in_memory` (where the root cannot be written)."""

    def __init__(self, reader: sqlite3.Connection, writer: sqlite3.Connection, path: Path | None) -> None:
        self.path = path
        self._reader, self._writer = reader, writer
        self._write_lock = RLock()
        self._read_lock = self._write_lock if reader is writer else RLock()
        self._keys: dict[str, int] = {}

    @classmethod
    def open(cls, path: Path) -> tuple[Catalog, bool]:
        """The catalog at `path`, and whether a damaged one was deleted. Call with the root's lock held."""
        writer, damaged = schema.open_file(path)
        return cls(schema.connect(str(path)), writer, path), damaged

    @classmethod
    def in_memory(cls) -> Catalog:
        connection = schema.connect(":memory:")
        schema.create(connection)
        return cls(connection, connection, None)

    def recreate(self) -> None:
        """Start again, empty. Call with the root's lock held, then reconcile."""
        with self._write_lock, self._read_lock:
            self.close()
            self._keys.clear()
            if self.path is None:
                self._reader = self._writer = schema.connect(":memory:")
                schema.create(self._writer)
            else:
                schema.delete(self.path)
                self._writer, _ = schema.open_file(self.path)
                self._reader = schema.connect(str(self.path))

    def close(self) -> None:
        for connection in (self._reader, self._writer):
            with suppress(sqlite3.Error):
                connection.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything inside is done as a whole, and no other process is in a transaction meanwhile."""
        with self._write_lock:
            if self._writer.in_transaction:
                yield
                return
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._writer.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self._writer.execute("ROLLBACK")
                raise

    # models

    def register(self, model: str, layout: str) -> None:
        """Name a model and its layout. StoreError if the model is known with another layout."""
        with self.transaction():
            self._writer.execute(
                "INSERT OR IGNORE INTO models (fingerprint, layout) VALUES (?, ?)", (model, layout)
            )
            known = self.models()[model]
        if known != layout:
            raise StoreError(
                f"the store holds model {model[:16]} with the layout {known}, not {layout}: "
                f"run `agentcache store clear --model {model[:16]}`, or use another store"
            )

    def models(self) -> dict[str, str]:
        """Fingerprint to layout, of every model that ever had entries here."""
        with self._write_lock:
            return dict(self._writer.execute("SELECT fingerprint, layout FROM models"))

    # look-ups

    def salt_of(self, model: str, id: str) -> str | None:
        with self._read_lock:
            sql = "SELECT salt FROM entries WHERE model = ? AND id = ?"
            found = self._reader.execute(sql, (self._key(model), id)).fetchone()
        return None if found is None else str(found[0])

    def rows(self, model: str, *, after: int = -1, page: int = 1000) -> Iterator[Row | str]:
        """Rows of `model` with keys above `after`, as they were added; the id alone of a row that is damaged."""
        # "+": in the order of the table, not by an index and then sorted, again for every page
        sql = f"SELECT key, {COLUMNS} FROM entries WHERE +model = ? AND key > ? ORDER BY key LIMIT ?"
        while True:
            with self._read_lock:
                found = self._reader.execute(sql, (self._key(model), after, page)).fetchall()
            if not found:
                return
            after = found[-1][0]
            yield from map(decode_row, found)

    def newest_key(self) -> int:
        """The key of the row added last, of any model; -1 if there is none."""
        with self._read_lock:
            (key,) = self._reader.execute("SELECT COALESCE(MAX(key), -1) FROM entries").fetchone()
        return int(key)

    def ids(self, model: str, prefix: str = "") -> list[tuple[str, str]]:
        """(salt, id) of every row whose id starts with `prefix`."""
        with self._read_lock:
            sql = "SELECT salt, id FROM entries WHERE model = ? AND id >= ? AND id < ?"
            return self._reader.execute(sql, (self._key(model), prefix, prefix + "~")).fetchall()

    def usage(self, model: str | None = None) -> tuple[int, int]:
        """Entries and bytes of one model, or of all; files being written count as bytes."""
        with self._read_lock:
            key = None if model is None else self._key(model)
            found = self._reader.execute(_USAGE, (key, key)).fetchone()
        return int(found[0]), int(found[1])

    def bytes_used(self) -> int:
        """As `usage` of all models, the changes of the present transaction included."""
        with self._write_lock:
            return int(self._writer.execute(_USAGE, (None, None)).fetchone()[1])

    def victims(self, limit: int, *, skip: int = 0, unused_since: float | None = None) -> list[Victim]:
        """The least recently used entries of all models, oldest first, but for the first `skip`."""
        sql = (
            "SELECT key, fingerprint, salt, entries.id, size, length(tokens) / 4, position, created, last_used, "
            "uses, weight "
            "FROM entries JOIN models ON models.id = entries.model "
            "WHERE last_used < ? ORDER BY last_used LIMIT ? OFFSET ?"
        )
        before = float("inf") if unused_since is None else unused_since
        with self._write_lock:
            found = self._writer.execute(sql, (before, limit, skip)).fetchall()
        return [Victim(key, model, salt, Candidate(*rest)) for key, model, salt, *rest in found]

    def newest_use(self) -> float:
        with self._read_lock:
            (newest,) = self._reader.execute("SELECT COALESCE(MAX(last_used), 0) FROM entries").fetchone()
        return float(newest)

    # changes

    def upsert(self, model: str, rows: Iterable[Row]) -> None:
        with self.transaction():
            key = self._key(model, self._writer)
            self._writer.executemany(_INSERT, [(key, *encode_row(row)) for row in rows])

    def delete(self, keys: Sequence[int]) -> None:
        with self.transaction():
            self._writer.executemany("DELETE FROM entries WHERE key = ?", [(key,) for key in keys])

    def delete_ids(self, model: str, ids: Sequence[str]) -> None:
        with self.transaction():
            key = self._key(model, self._writer)
            self._writer.executemany(
                "DELETE FROM entries WHERE model = ? AND id = ?", [(key, id) for id in ids]
            )

    def forget(self, model: str) -> None:
        """Forget a model's layout if it has no entry left and nothing is being written for it."""
        with self.transaction():
            key = self._key(model, self._writer)
            used = self._writer.execute("SELECT bytes FROM usage WHERE model = ?", (key,)).fetchone()
            if used is None or used[0] == 0:
                self._writer.execute("DELETE FROM models WHERE id = ?", (key,))
                self._writer.execute("DELETE FROM usage WHERE model = ?", (key,))
                self._keys.pop(model, None)

    def touch(self, model: str, uses: dict[str, tuple[int, float]]) -> None:
        """Note how often and when last entries were read: id to (number of reads, time)."""
        with self.transaction():
            key = self._key(model, self._writer)
            self._writer.executemany(
                "UPDATE entries SET uses = uses + ?, last_used = ? WHERE model = ? AND id = ?",
                [(count, when, key, id) for id, (count, when) in uses.items()],
            )

    def weigh(self, model: str, weights: dict[str, float]) -> None:
        """Note how likely entries are to be read, beyond what their uses say (`policy.Candidate`)."""
        with self.transaction():
            key = self._key(model, self._writer)
            self._writer.executemany(
                "UPDATE entries SET weight = ? WHERE model = ? AND id = ?",
                [(weight, key, id) for id, weight in weights.items()],
            )

    def reserve(self, owner: str, model: str, salt: str, id: str, size: int) -> int:
        """Count `size` bytes as used, for an entry being written, until `release` is given the key returned."""
        with self.transaction():
            key = self._key(model, self._writer)
            sql = "INSERT INTO reservations (owner, model, salt, id, size) VALUES (?, ?, ?, ?, ?)"
            return self._writer.execute(sql, (owner, key, salt, id, size)).lastrowid or 0

    def release(self, reservation: int) -> None:
        with self.transaction():
            self._writer.execute("DELETE FROM reservations WHERE key = ?", (reservation,))

    def orphans(self, owners: set[str]) -> list[Orphan]:
        """Reservations of processes that are gone: not of `owners`."""
        sql = (
            "SELECT key, owner, fingerprint, salt, reservations.id FROM reservations "
            "JOIN models ON models.id = reservations.model"
        )
        with self._write_lock:
            found = self._writer.execute(sql).fetchall()
        return [Orphan(key, *rest) for key, owner, *rest in found if owner not in owners]

    def _key(self, model: str, connection: sqlite3.Connection | None = None) -> int:
        """Row id of a model; -1, which no entry has, for one that is not registered."""
        key = self._keys.get(model)
        if key is None:
            sql = "SELECT id FROM models WHERE fingerprint = ?"
            found = (connection or self._reader).execute(sql, (model,)).fetchone()
            if found is None:
                return -1
            key = self._keys[model] = int(found[0])
        return key
