"""The catalog's tables, and how a database that is old, new or damaged is met.

Triggers keep `usage`, so that the bytes in use are known in one look-up, whoever writes.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from pathlib import Path

from sqlite_utils import Database, Migrations

from agentcache.errors import StoreError

VERSION = 4
_OLDEST_KEPT = 4
"""Older catalogs list entry files of the first format, which are not read any more."""
_CHECK_UP_TO_BYTES = 64 << 20


class Damaged(sqlite3.DatabaseError):
    """SQLite's own check found a fault, or the catalog is of a format whose files are not read any more."""


migrations = Migrations("agentcache.store")


@migrations()  # type: ignore[untyped-decorator]
def m001_entries(db: Database) -> None:
    db["models"].create(
        {"id": int, "fingerprint": str, "layout": str}, pk="id", not_null={"fingerprint", "layout"}
    )
    db["models"].create_index(["fingerprint"], unique=True)
    columns = {
        "key": int,  # rowid: infos() pages through it
        "model": int,
        "id": str,
        "salt": str,
        "context": str,
        "parent": str,
        "position": int,
        "tokens": bytes,  # little endian int32
        "size": int,  # bytes of the file
        "created": float,
        "last_used": float,
        "uses": int,
        "checksum": bytes,  # of the row itself (`catalog.py`)
    }
    db["entries"].create(columns, pk="key", not_null=set(columns))
    db["entries"].create_index(["model", "id"], unique=True)
    db["entries"].create_index(["last_used"])
    # room taken by files being written, so that two processes never count on the same bytes
    db["reservations"].create({"key": int, "owner": str, "model": int, "size": int}, pk="key")
    db["usage"].create(
        {"model": int, "entries": int, "bytes": int}, pk="model", not_null={"entries", "bytes"}
    )
    for table, counted in (("entries", 1), ("reservations", 0)):
        for event, row, sign in (("INSERT", "NEW", "+"), ("DELETE", "OLD", "-")):
            db.execute(
                f"CREATE TRIGGER {table}_{event.lower()} AFTER {event} ON {table} BEGIN "
                f"INSERT OR IGNORE INTO usage VALUES ({row}.model, 0, 0); "
                f"UPDATE usage SET entries = entries {sign} {counted}, bytes = bytes {sign} {row}.size "
                f"WHERE model = {row}.model; END"
            )
    db.execute(
        "CREATE TRIGGER entries_size AFTER UPDATE OF size ON entries BEGIN "
        "UPDATE usage SET bytes = bytes + NEW.size - OLD.size WHERE model = NEW.model; END"
    )


@migrations()  # type: ignore[untyped-decorator]
def m002_what_is_being_written(db: Database) -> None:
    # so that opening after a kill looks at these files, and not at all
    db["reservations"].add_column("salt", str, not_null_default="")
    db["reservations"].add_column("id", str, not_null_default="")


@migrations()  # type: ignore[untyped-decorator]
def m003_weights(db: Database) -> None:
    # how likely an entry is to be read, beyond what its uses say
    db["entries"].add_column("weight", float, not_null_default=1.0)


def connect(path: str) -> sqlite3.Connection:
    """A connection for several threads (they lock), in autocommit mode: transactions are written out."""
    connection = sqlite3.connect(path, timeout=10.0, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA cache_size = -65536")  # KiB: rows come in no order, and so do pages
    connection.execute(
        "PRAGMA wal_autocheckpoint = 8192"
    )  # pages: 32 MB; what is changed often is written once
    return connection


def create(connection: sqlite3.Connection) -> None:
    """Bring the schema up to date. sqlite3.DatabaseError if it is damaged, StoreError if it is newer."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > VERSION:
        raise StoreError(
            f"the store's catalog has version {version}, this agentcache knows {VERSION}: "
            "upgrade agentcache, or set AGENTCACHE_HOME to another folder"
        )
    if 0 < version < _OLDEST_KEPT:
        raise Damaged(f"version {version}: made anew from the entry files")
    if version < VERSION:
        migrations.apply(Database(connection))
        connection.execute(f"PRAGMA user_version = {VERSION}")
    connection.execute("SELECT * FROM entries, models, reservations, usage LIMIT 1").fetchone()


def open_file(path: Path) -> tuple[sqlite3.Connection, bool]:
    """Open or create the catalog; a damaged one is deleted first (True). Call with the root's lock held."""
    try:
        return _open_checked(path), False
    except sqlite3.Error as error:
        if not is_damage(error):
            raise
    delete(path)
    return _open_checked(path), True


def delete(path: Path) -> None:
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
        with suppress(FileNotFoundError):
            os.unlink(path.with_name(name))


def _open_checked(path: Path) -> sqlite3.Connection:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # SQLite gives its side files the same permissions
    connection = connect(str(path))
    try:
        create(connection)
        # a full check costs a second a gigabyte; larger catalogs rely on the checksum of every row
        if path.stat().st_size <= _CHECK_UP_TO_BYTES:
            (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":
                raise Damaged(verdict)
    except BaseException:
        connection.close()
        raise
    return connection


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the database is not what it should be, as opposed to one that cannot be used just now."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) & 0xFF
    damage = (
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_ERROR,
    )  # ERROR: a table is missing
    return isinstance(error, Damaged) or code in damage or "decode to UTF-8" in str(error)
