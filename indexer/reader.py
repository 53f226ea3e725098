"""Reading the index: files, blocks, names. Every method is one short query, and sees the last commit."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from typing import NamedTuple

from agentcache.indexer.parse import PARSER_VERSION
from agentcache.indexer.records import Block, FileRecord, Problem, Reference

_BLOCK = "b.id, b.kind, b.name, b.scope, b.start_line, b.end_line, b.start_byte, b.end_byte"
_FILE = "c.language, c.size, c.content_id, c.num_blocks"


class FileRow(NamedTuple):
    """What is known of a path: its content row (None if left out for `reason`), the stat it was read under.

    `racy`: read so soon after it was written that an equal stat does not prove equal bytes.
    """

    content: int | None
    reason: str
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    racy: bool

    def matches(self, info: os.stat_result) -> bool:
        """Whether a file with this stat still holds the bytes that were read."""
        return (
            not self.racy
            and self.size == info.st_size
            and self.mtime_ns == info.st_mtime_ns
            and self.ctime_ns == info.st_ctime_ns
            and self.inode == info.st_ino
        )


def to_key(path: str) -> bytes:
    """A path as the database has it: any bytes may be in a file's name."""
    return os.fsencode(path)


def file_rows(connection: sqlite3.Connection) -> dict[str, FileRow]:
    """Every path that was read. Content of an older parser counts as none, so that it is read again."""
    rows = connection.execute(
        "SELECT f.path, f.content, f.reason, f.size, f.mtime_ns, f.ctime_ns, f.inode, "
        "f.racy OR (f.content IS NOT NULL AND c.parser IS NOT ?) "
        "FROM file f LEFT JOIN content c ON c.id = f.content",
        (PARSER_VERSION,),
    )
    return {os.fsdecode(path): FileRow(*rest) for path, *rest in rows}


def file_row(connection: sqlite3.Connection, path: str) -> FileRow | None:
    """What is known of one path."""
    row = connection.execute(
        "SELECT content, reason, size, mtime_ns, ctime_ns, inode, racy FROM file WHERE path = ?",
        (to_key(path),),
    ).fetchone()
    return FileRow(*row) if row else None


def files(connection: sqlite3.Connection) -> list[FileRecord]:
    """Indexed files, by path."""
    rows = connection.execute(
        f"SELECT f.path, {_FILE} FROM file f JOIN content c ON c.id = f.content ORDER BY f.path"
    )
    return [FileRecord(os.fsdecode(path), *rest) for path, *rest in rows]


def file_record(connection: sqlite3.Connection, path: str) -> FileRecord | None:
    """One indexed file; None if it is not indexed."""
    row = connection.execute(
        f"SELECT {_FILE} FROM file f JOIN content c ON c.id = f.content WHERE f.path = ?",
        (to_key(path),),
    ).fetchone()
    return FileRecord(path, *row) if row else None


def held_content_id(connection: sqlite3.Connection, content: int) -> str | None:
    """Content id of a content row; None if it was collected meanwhile."""
    row = connection.execute("SELECT content_id FROM content WHERE id = ?", (content,)).fetchone()
    return row[0] if row else None


def content_blocks(connection: sqlite3.Connection, content: int, path: str) -> list[Block]:
    """Blocks of a content row in file order, as blocks of `path`."""
    rows = connection.execute(
        f"SELECT {_BLOCK} FROM block b WHERE b.content = ? ORDER BY b.ordinal", (content,)
    )
    return [_block(path, row) for row in rows]


def num_different_blocks(connection: sqlite3.Connection) -> int:
    """Blocks of indexed files, equal ones counted once."""
    query = "SELECT COUNT(DISTINCT b.id) FROM block b WHERE b.content IN (SELECT content FROM file)"
    count: int = connection.execute(query).fetchone()[0]
    return count


def find(connection: sqlite3.Connection, name: str) -> list[Block]:
    """Blocks in which `name` is defined, by path. A dotted name also says what is around it."""
    found = _find(connection, name)
    if not found and "." in name:
        scope, _, last = name.rpartition(".")
        found = [
            block
            for block in _find(connection, last)
            if block.name == last and (block.scope == scope or block.scope.endswith(f".{scope}"))
        ]
    return found


def _find(connection: sqlite3.Connection, name: str) -> list[Block]:
    rows = connection.execute(
        f"SELECT DISTINCT f.path, {_BLOCK} FROM name n JOIN definition d ON d.name = n.id "
        "JOIN file f ON f.content = d.content "
        "JOIN block b ON b.content = d.content AND b.ordinal = d.ordinal "
        "WHERE n.text = ? ORDER BY f.path, b.ordinal",
        (name,),
    )
    return [_block(os.fsdecode(path), row) for path, *row in rows]


def references(connection: sqlite3.Connection, name: str) -> list[Reference]:
    """Lines that mention `name`, by path and line."""
    rows = connection.execute(
        "SELECT f.path, m.content, m.lines FROM name n JOIN mention m ON m.name = n.id "
        "JOIN file f ON f.content = m.content WHERE n.text = ? ORDER BY f.path",
        (name,),
    ).fetchall()
    found = []
    for key, content, lines in rows:
        path = os.fsdecode(key)
        blocks = iter(content_blocks(connection, content, path))
        block = next(blocks)
        for line in map(int, lines.split(",")):
            while block.end_line < line:
                block = next(blocks)
            found.append(Reference(name, path, line, block))
    return found


def similar_names(connection: sqlite3.Connection, text: str, limit: int) -> list[str]:
    """Defined names that contain `text` (three letters or more, any case), shortest first."""
    if len(text) < 3:
        return []
    quoted = '"' + text.replace('"', '""') + '"'
    rows = connection.execute(
        "SELECT s.text FROM name_search s WHERE s.name_search MATCH ? "
        "AND EXISTS (SELECT 1 FROM definition d JOIN file f ON f.content = d.content WHERE d.name = s.rowid) "
        "ORDER BY length(s.text), s.text LIMIT ?",
        (quoted, limit),
    )
    return [name for (name,) in rows]


def totals(connection: sqlite3.Connection) -> tuple[int, int, int, dict[str, int]]:
    """Files, blocks, bytes, and files by language (most first)."""
    rows = connection.execute(
        "SELECT c.language, count(*), sum(c.num_blocks), sum(c.size) "
        "FROM file f JOIN content c ON c.id = f.content "
        "GROUP BY c.language ORDER BY count(*) DESC, c.language"
    ).fetchall()
    return (
        sum(row[1] for row in rows),
        sum(row[2] for row in rows),
        sum(row[3] for row in rows),
        {row[0]: row[1] for row in rows},
    )


def meta(connection: sqlite3.Connection, key: str) -> str | None:
    """A setting that was kept with the index."""
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return row[0] if row else None


def left_out(connection: sqlite3.Connection) -> Iterator[tuple[str, str]]:
    """(path, reason) of everything that was left out; a path with a slash behind it is a whole folder."""
    rows = connection.execute(
        "SELECT path, reason FROM left_out WHERE NOT problem "
        "UNION ALL SELECT path, reason FROM file WHERE content IS NULL ORDER BY 1"
    )
    for path, reason in rows:
        yield os.fsdecode(path), reason


def is_left_out(connection: sqlite3.Connection, path: str) -> bool:
    """Whether `path`, or a folder that it is in, was left out (and was not in trouble)."""
    parts = path.split("/")
    keys = [to_key(path), *(to_key("/".join(parts[:count]) + "/") for count in range(1, len(parts)))]
    marks = ", ".join("?" * len(keys))
    row = connection.execute(f"SELECT 1 FROM left_out WHERE path IN ({marks}) AND NOT problem LIMIT 1", keys)
    return row.fetchone() is not None


def problems(connection: sqlite3.Connection) -> list[Problem]:
    """Files in trouble, by path: those that could not be read, and those kept as windows, with the reason."""
    rows = connection.execute(
        "SELECT path, reason FROM left_out WHERE problem "
        "UNION ALL SELECT f.path, c.note FROM file f JOIN content c ON c.id = f.content "
        "WHERE c.note != '' ORDER BY 1"
    )
    return [Problem(os.fsdecode(path), reason) for path, reason in rows]


def _block(path: str, row: tuple[object, ...] | list[object]) -> Block:
    raw, kind, name, scope, start_line, end_line, start_byte, end_byte = row
    assert isinstance(raw, bytes)
    return Block(raw.hex(), path, kind, name, start_line, end_line, start_byte, end_byte, scope)  # type: ignore[arg-type]
