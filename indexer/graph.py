"""Which files matter most: PageRank over "mentions a name that is defined there", as repo maps do."""

from __future__ import annotations

import os
import sqlite3
from collections import defaultdict

_DAMPING = 0.85
_MAX_ROUNDS = 50
_TOLERANCE = 1e-6
_COMMON = 12
"""A name that more files than this define (`run`, `__init__`) says nothing about which of them is meant."""


def importance(connection: sqlite3.Connection) -> dict[str, float]:
    """Importance of every indexed file, most first; the values add up to 1. {} for an empty index."""
    import numpy as np

    rows = connection.execute(
        "SELECT path, content FROM file WHERE content IS NOT NULL ORDER BY path"
    ).fetchall()
    if not rows:
        return {}
    holders: defaultdict[int, list[int]] = defaultdict(list)
    for at, (_, content) in enumerate(rows):
        holders[content].append(at)
    sources, targets, weights = _edges(connection, holders)
    count = len(rows)
    outgoing = np.bincount(sources, weights, count)
    share = np.asarray(weights) / outgoing[sources] if sources else np.zeros(0)
    idle = outgoing == 0
    rank = np.full(count, 1.0 / count)
    for _ in range(_MAX_ROUNDS):
        flow = np.bincount(targets, rank[sources] * share, count) if sources else np.zeros(count)
        new = (1 - _DAMPING) / count + _DAMPING * (flow + rank[idle].sum() / count)
        moved = float(np.abs(new - rank).sum())
        rank = new
        if moved < _TOLERANCE:
            break
    order = sorted(range(count), key=lambda at: (-rank[at], rows[at][0]))
    return {os.fsdecode(rows[at][0]): float(rank[at]) for at in order}


def neighbours(connection: sqlite3.Connection, path: str, limit: int) -> list[str]:
    """Files that mention a name defined in `path`, or define one that it mentions; the closest first."""
    row = connection.execute("SELECT content FROM file WHERE path = ?", (os.fsencode(path),)).fetchone()
    if row is None or row[0] is None:
        return []
    weights: defaultdict[str, float] = defaultdict(float)
    for there, here in (("mention", "definition"), ("definition", "mention")):
        query = (
            f"SELECT f.path, t.name FROM (SELECT DISTINCT name FROM {here} WHERE content = ?) h "
            f"JOIN {there} t ON t.name = h.name JOIN file f ON f.content = t.content "
            "WHERE (SELECT COUNT(*) FROM (SELECT DISTINCT content FROM definition d WHERE d.name = h.name LIMIT ?)) < ?"
        )
        for other, _ in set(connection.execute(query, (row[0], _COMMON + 1, _COMMON + 1))):
            weights[os.fsdecode(other)] += 1.0
    weights.pop(path, None)
    return sorted(weights, key=lambda other: (-weights[other], other))[:limit]


def _edges(
    connection: sqlite3.Connection, holders: dict[int, list[int]]
) -> tuple[list[int], list[int], list[float]]:
    """Parallel lists: file that mentions, file that defines, weight. A file does not vote for itself."""
    definers: defaultdict[int, set[int]] = defaultdict(set)
    for name, content in connection.execute("SELECT DISTINCT name, content FROM definition"):
        definers[name].update(holders.get(content, ()))
    weights: defaultdict[tuple[int, int], float] = defaultdict(float)
    for name, content, times in connection.execute(
        "SELECT name, content, 1 + length(lines) - length(replace(lines, ',', '')) FROM mention"
    ):
        targets = definers.get(name)
        if not targets or len(targets) > _COMMON:
            continue
        weight = times**0.5 / len(targets)
        for source in holders.get(content, ()):
            for target in targets:
                if source != target:
                    weights[source, target] += weight
    return [edge[0] for edge in weights], [edge[1] for edge in weights], list(weights.values())
