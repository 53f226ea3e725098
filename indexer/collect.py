"""Collecting garbage: what parsing gave for bytes that no file holds any more.

It is kept for a while, because branches are switched back and edits are undone, but no more of it than there
is of the living.
"""

from __future__ import annotations

from agentcache.indexer.database import Database

_KEEP_AT_LEAST = 2000


def collect(database: Database, keep_at_least: int = _KEEP_AT_LEAST) -> int:
    """Drop the oldest unheld contents beyond `keep_at_least` or the number of held ones; returns how many."""
    connection = database.connection
    (held,) = connection.execute(
        "SELECT count(*) FROM content c WHERE EXISTS (SELECT 1 FROM file f WHERE f.content = c.id)"
    ).fetchone()
    (total,) = connection.execute("SELECT count(*) FROM content").fetchone()
    keep = max(held, keep_at_least)
    if total - held <= keep + keep // 4:
        return 0
    with database.updating(), database.writing():
        connection.execute("CREATE TEMP TABLE doomed (id INTEGER PRIMARY KEY)")
        dropped = connection.execute(
            "INSERT INTO doomed SELECT id FROM content c "
            "WHERE NOT EXISTS (SELECT 1 FROM file f WHERE f.content = c.id) "
            "ORDER BY id DESC LIMIT -1 OFFSET ?",
            (keep,),
        ).rowcount
        for table, column in (
            ("block", "content"),
            ("definition", "content"),
            ("mention", "content"),
            ("content", "id"),
        ):
            connection.execute(f"DELETE FROM {table} WHERE {column} IN (SELECT id FROM doomed)")
        connection.execute("DROP TABLE doomed")
        _drop_names(database)
    return int(dropped)


def _drop_names(database: Database) -> None:
    connection = database.connection
    unused = "SELECT id FROM name EXCEPT SELECT name FROM definition EXCEPT SELECT name FROM mention"
    connection.execute(
        "INSERT INTO name_search (name_search, rowid, text) "
        f"SELECT 'delete', id, text FROM name WHERE id IN ({unused})"
    )
    connection.execute(f"DELETE FROM name WHERE id IN ({unused})")
