"""Half-typed files: a syntax error must not hide the definitions behind it.

An unclosed quote or bracket turns the rest of a file inside out for the parser. What stands at the left
margin below a blank line starts something new in nearly every file, so the file is also read in such parts,
each by itself, and the reading that finds more definitions counts. The result depends on the bytes alone,
so that an index that was kept up to date through the error equals a fresh one.
"""

from __future__ import annotations

from collections.abc import Callable

from agentcache.indexer.lines import line_starts
from agentcache.indexer.scan import Definition, Scan

_MAX_PARTS = 4000


def recovered(
    whole: Scan, data: bytes, starts: list[int], scan_bytes: Callable[[bytes, list[int]], Scan]
) -> Scan:
    """`whole`, or what the parts of the file hold if that is more."""
    rows = _part_rows(data, starts)
    if not 1 < len(rows) <= _MAX_PARTS:
        return whole
    definitions: list[Definition] = []
    mentions: dict[str, list[int]] = {}
    for first, end in zip(rows, [*rows[1:], len(starts)], strict=True):
        part = data[starts[first] : starts[end] if end < len(starts) else len(data)]
        found = scan_bytes(part, line_starts(part))
        definitions += [
            item._replace(
                first_row=item.first_row + first,
                last_row=item.last_row + first,
                name_row=item.name_row + first,
            )
            for item in found.definitions
        ]
        for name, at in found.mentions.items():
            mentions.setdefault(name, []).extend(row + first for row in at)
    return Scan(definitions, mentions) if len(definitions) > len(whole.definitions) else whole


def _part_rows(data: bytes, starts: list[int]) -> list[int]:
    """Row 0, and every row that starts with text at the margin (no closing bracket) below a blank row."""
    rows = [0]
    for row in range(1, len(starts)):
        first = data[starts[row] : starts[row] + 1]
        if first.strip() and first not in b")]}" and not data[starts[row - 1] : starts[row]].strip():
            rows.append(row)
    return rows
