"""The index database: its tables, and how an older one becomes a current one.

content ──< block        what parsing some bytes gave; kept for a while after no file holds them
   │   ──< definition >── name      who defines a name
   │   ──< mention    >── name      who mentions it
file >── content         which bytes stand at which path now, and the stat they were read under
left_out                 what is not indexed, and what could not be looked at
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlite_utils import Database

VERSION = 1
"""`PRAGMA user_version` of a current database. A later one is refused: only its own program knows it."""

TABLES = ("content", "block", "name", "definition", "mention", "file", "left_out", "meta")

_TABLES_V1 = """
CREATE TABLE content (
    id INTEGER PRIMARY KEY,
    content_id TEXT NOT NULL,
    language TEXT NOT NULL,
    parser INTEGER NOT NULL,
    size INTEGER NOT NULL,
    note TEXT NOT NULL,
    num_blocks INTEGER NOT NULL,
    UNIQUE (content_id, language, parser)
);
CREATE TABLE block (
    content INTEGER NOT NULL,
    ordinal INTEGER NOT NULL,
    id BLOB NOT NULL,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    scope TEXT NOT NULL,
    start_line INTEGER NOT NULL,
    end_line INTEGER NOT NULL,
    start_byte INTEGER NOT NULL,
    end_byte INTEGER NOT NULL,
    PRIMARY KEY (content, ordinal)
) WITHOUT ROWID;
CREATE TABLE name (id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE);
CREATE VIRTUAL TABLE name_search USING fts5(text, content='name', content_rowid='id', tokenize='trigram');
CREATE TABLE definition (
    name INTEGER NOT NULL,
    content INTEGER NOT NULL,
    ordinal INTEGER NOT NULL,
    line INTEGER NOT NULL,
    kind TEXT NOT NULL,
    PRIMARY KEY (name, content, ordinal, line)
) WITHOUT ROWID;
CREATE TABLE mention (
    name INTEGER NOT NULL,
    content INTEGER NOT NULL,
    lines TEXT NOT NULL,
    PRIMARY KEY (name, content)
) WITHOUT ROWID;
CREATE TABLE file (
    path BLOB PRIMARY KEY,
    content INTEGER,
    reason TEXT NOT NULL,
    size INTEGER NOT NULL,
    mtime_ns INTEGER NOT NULL,
    ctime_ns INTEGER NOT NULL,
    inode INTEGER NOT NULL,
    racy INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX file_content ON file (content);
CREATE TABLE left_out (path BLOB PRIMARY KEY, reason TEXT NOT NULL, problem INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""


def migrate(connection: sqlite3.Connection) -> None:
    """Bring a database to `VERSION`. Waits for another process that is doing so; safe to run twice."""
    # Importing sqlite-utils takes longer than most updates: only databases that need it pay.
    from sqlite_utils import Database
    from sqlite_utils.migrations import Migrations

    migrations = Migrations("agentcache.indexer")

    @migrations(name="1_tables")  # type: ignore[untyped-decorator]
    def tables(db: Database) -> None:
        for statement in _TABLES_V1.split(";\n"):
            if statement.strip():
                db.conn.execute(statement)

    migrations.apply(Database(connection, execute_plugins=False))
    connection.execute(f"PRAGMA user_version = {VERSION}")
