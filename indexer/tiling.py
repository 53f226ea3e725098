"""From definitions to pieces that tile a file, row by row.

Functions and their like are pieces as a whole; what they define inside stays inside. Classes and their like
are ranges: a head, then their members, then what is left. Blank rows go with the piece above them, because a
piece must start with text: tokenisers merge line feeds, and only a first token behind them is its own.
"""

from __future__ import annotations

from typing import NamedTuple

from agentcache.indexer.scan import Definition

HOLDERS = frozenset(
    (
        "class",
        "interface",
        "struct",
        "union",
        "enum",
        "trait",
        "impl",
        "object",
        "record",
        "protocol",
        "extension",
        "annotation",
    )
)
"""Kinds whose members become pieces, and whose functions are methods."""

SPACES = frozenset(("namespace", "suite"))
"""Kinds whose members become pieces, and whose functions stay functions."""

_CONTAINERS = HOLDERS | SPACES
_MAX_SCOPE = 500
"""Characters."""


class Piece(NamedTuple):
    """A run of rows that starts at `row` and ends where the next piece starts."""

    row: int
    kind: str
    name: str
    scope: str


class _Open(NamedTuple):
    """A definition that the walk is inside of; `at` is its place in the list of pieces."""

    last_row: int
    kind: str
    scope: str
    at: int


def tile(definitions: list[Definition], blank: list[bool], head: str = "module head") -> list[Piece]:
    """Pieces of a file with one row for each item of `blank` (is the row blank?), ascending, first row 0.

    `definitions` come sorted as `scan` sorts them. [] for a file without rows.
    """
    if not blank:
        return []
    pieces = [Piece(0, head, "", "")]
    inside: list[_Open] = []
    for item in definitions:
        while inside and inside[-1].last_row < item.first_row:
            _close(pieces, inside)
        if not inside:
            inside.append(_opened(pieces, item, None))
            continue
        around = inside[-1]
        if item.last_row > around.last_row:
            # Two definitions share a row: the first one's piece takes both.
            inside = [o._replace(last_row=max(o.last_row, item.last_row)) for o in inside]
        elif around.kind in _CONTAINERS and item.first_row > pieces[around.at].row:
            inside.append(_opened(pieces, item, around))
    while inside:
        _close(pieces, inside)
    return _settled(pieces, blank)


def _opened(pieces: list[Piece], item: Definition, around: _Open | None) -> _Open:
    kind, scope = item.kind, around.scope if around else ""
    if around:
        if kind == "function" and around.kind in HOLDERS:
            kind = "method"
        if pieces[around.at].kind == around.kind:
            pieces[around.at] = pieces[around.at]._replace(kind=f"{around.kind} head")
    pieces.append(Piece(item.first_row, kind, item.name, scope))
    below = f"{scope}.{item.name}" if scope else item.name
    # Thousands of nested classes are no program: their scopes would outgrow the file.
    return _Open(item.last_row, kind, below if len(below) <= _MAX_SCOPE else scope, len(pieces) - 1)


def _close(pieces: list[Piece], inside: list[_Open]) -> None:
    """Leave the innermost definition: what follows it is text of whatever is around."""
    closed = inside.pop()
    pieces.append(Piece(closed.last_row + 1, "text", "", inside[-1].scope if inside else ""))


def _settled(pieces: list[Piece], blank: list[bool]) -> list[Piece]:
    """Let every piece start with text, and drop those that hold none."""
    settled: list[Piece] = []
    for at, piece in enumerate(pieces):
        end = pieces[at + 1].row if at + 1 < len(pieces) else len(blank)
        first = next((row for row in range(piece.row, end) if not blank[row]), None)
        if first is not None:
            settled.append(piece._replace(row=first if settled else 0))
    return settled or pieces[:1]
