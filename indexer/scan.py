"""From a syntax tree to definitions and mentions, by the language's query alone: no node names in this file.

Captures that a query may use:

    @name        what a definition is called; every definition capture comes with one, or with a
    @declarator  at the bottom of whose declarators the name is
    @mention     a name that is used here: called, inherited from, imported, used as a type; not if it is
                 the @name of a definition
    @lead        a node that belongs to the definition below it: a comment, an attribute, a decorator
    @wrap        a node that widens the first definition in it: decorated, exported, templated
    @_...        for the query itself
    other        a definition, and the capture is its kind: @class, @function, @method, ...

Where two patterns define the same name node, the widest range counts and the kind of the earlier pattern.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from tree_sitter import QueryCursor

from agentcache.indexer.grammar import OutOfTime

if TYPE_CHECKING:
    from tree_sitter import Node, Query

_QUOTES = "\"'`:"
_MATCH_LIMIT = 4096
"""Matches that the cursor may have under way at once."""


class Definition(NamedTuple):
    """Rows count from 0, both ends included; `name_row` is where the name stands, below leads and wraps."""

    first_row: int
    last_row: int
    kind: str
    name: str
    name_row: int


class Scan(NamedTuple):
    """Definitions by first row, outer ones first; rows (ascending, from 0) by mentioned name."""

    definitions: list[Definition]
    mentions: dict[str, list[int]]


class _Found(NamedTuple):
    start: int
    end: int
    first_row: int
    last_row: int
    pattern: int
    kind: str
    name: str
    name_row: int


def scan(root: Node, query: Query, data: bytes, starts: list[int], deadline: float) -> Scan:
    """Definitions and mentions below `root`, the tree of `data`, whose lines start at `starts`.

    OutOfTime if it was not done by `deadline` (`time.thread_time()`).
    """
    found: dict[int, _Found] = {}
    wraps: list[Node] = []
    leads: dict[int, int] = {}
    mentioned: list[Node] = []
    # A progress callback crashes the cursor of tree-sitter 0.26.1; the limit bounds its work instead.
    for pattern, captures in QueryCursor(query, match_limit=_MATCH_LIMIT).matches(root):
        for capture, nodes in captures.items():
            if capture == "mention":
                mentioned += nodes
            elif capture == "lead":
                for node in nodes:
                    _add_lead(leads, node, data, starts)
            elif capture == "wrap":
                wraps.extend(nodes)
            elif capture not in ("name", "declarator") and not capture.startswith("_"):
                name = captures["name"][0] if "name" in captures else _innermost(captures["declarator"][0])
                _add_definition(found, pattern, capture, nodes[0], name, data)
    if time.thread_time() > deadline:
        raise OutOfTime
    mentions: dict[str, list[int]] = {}
    for node in mentioned:
        if node.start_byte not in found:
            mentions.setdefault(_text(data, node), []).append(node.start_point[0])
    definitions = _with_leads(_widened(list(found.values()), wraps), leads)
    return Scan(definitions, {name: sorted(set(rows)) for name, rows in mentions.items() if name})


def _text(data: bytes, node: Node) -> str:
    return data[node.start_byte : node.end_byte].decode("utf-8", "replace")


def _innermost(declarator: Node) -> Node:
    """The name that a C declarator declares: `f` of `*(&f)(int)`, `g` of `A::g()`."""
    node = declarator
    while True:
        below = node.child_by_field_name("declarator") or node.child_by_field_name("name")
        if below is None and node.type.endswith("declarator") and node.named_child_count == 1:
            below = node.named_child(0)
        if below is None:
            return node
        node = below


def _rows(node: Node) -> tuple[int, int]:
    """First and last row of `node`; one that ends with a line feed does not reach into the next row."""
    first = node.start_point[0]
    last, column = node.end_point
    return first, last - 1 if column == 0 and last > first else last


def _add_definition(
    found: dict[int, _Found], pattern: int, kind: str, node: Node, name: Node, data: bytes
) -> None:
    first, last = _rows(node)
    new = _Found(
        node.start_byte,
        node.end_byte,
        first,
        last,
        pattern,
        kind,
        _text(data, name).strip(_QUOTES),
        name.start_point[0],
    )
    old = found.get(name.start_byte)
    if old is not None:
        wider = new if new.end - new.start > old.end - old.start else old
        earlier = new if new.pattern < old.pattern else old
        new = wider._replace(kind=earlier.kind, name=earlier.name, pattern=earlier.pattern)
    found[name.start_byte] = new


def _add_lead(leads: dict[int, int], node: Node, data: bytes, starts: list[int]) -> None:
    """Note a lead as last row -> first row, if it has its lines to itself."""
    first, last = _rows(node)
    line_end = starts[last + 1] if last + 1 < len(starts) else len(data)
    if not data[starts[first] : node.start_byte].strip() and not data[node.end_byte : line_end].strip():
        leads[last] = first


def _widened(found: list[_Found], wraps: list[Node]) -> list[_Found]:
    """Each wrap's start, given to the first definition in it that ends on the wrap's last row."""
    if not wraps:
        return found
    found.sort(key=lambda item: (item.start, -item.end))
    open_wraps: list[tuple[int, int, int, int]] = []
    spans = [(node.start_byte, -node.end_byte, *_rows(node)) for node in wraps]
    spans.sort(reverse=True)
    result = []
    for item in found:
        while spans and spans[-1][0] <= item.start:
            start, minus_end, first, last = spans.pop()
            open_wraps.append((start, -minus_end, first, last))
        while open_wraps:
            start, end, first, last = open_wraps[-1]
            if end < item.end:
                open_wraps.pop()
                continue
            if last != item.last_row:
                break
            open_wraps.pop()
            item = item._replace(start=start, end=max(end, item.end), first_row=first)
        result.append(item)
    return result


def _with_leads(found: list[_Found], leads: dict[int, int]) -> list[Definition]:
    definitions = []
    ends = {item.last_row for item in found}
    for item in found:
        first = item.first_row
        while (above := leads.get(first - 1)) is not None and ends.isdisjoint(range(above, first)):
            first = above
        definitions.append(Definition(first, item.last_row, item.kind, item.name, item.name_row))
    # Stable: of two with the same rows, the one that starts first in the text stays first.
    definitions.sort(key=lambda d: (d.first_row, -d.last_row))
    return definitions
