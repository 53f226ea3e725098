"""Sections of files that need no grammar: a pattern a language says which lines start one.

A wrong guess costs a boundary in an odd place and nothing else: the pieces tile the file whatever they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from agentcache.indexer.tiling import Piece

_STARTS = {
    # A key at the margin, or the next document of a stream.
    "yaml": re.compile(rb"""^(?:---|(?P<name>[\w."'/$<-][^:#\n]*?)[ \t]*:(?=\s|$))"""),
    "toml": re.compile(rb"^\[\[?(?P<name>[^\]\n]+)\]\]?"),
    "css": re.compile(rb"^(?P<name>[^\s{}/*][^{}\n]*?)[ \t]*\{"),
    "html": re.compile(
        rb"^[ \t]{0,4}<(?P<name>head|body|main|header|footer|nav|section|article|aside|form|table"
        rb"|template|script|style|h[1-6])\b",
        re.IGNORECASE,
    ),
    "sql": re.compile(
        rb"^(?:CREATE|ALTER|DROP)\s+(?:[\w=@`]+\s+)*?(?:TABLE|VIEW|INDEX|FUNCTION|PROCEDURE|TRIGGER|SCHEMA|SEQUENCE|TYPE"
        rb"|DATABASE|DOMAIN|EXTENSION|ROLE|USER|POLICY)\s+(?:CONCURRENTLY\s+)?(?:IF\s+(?:NOT\s+)?EXISTS\s+)?"
        rb"(?P<name>[\w.\"`\[\]]+)|^(?:INSERT|UPDATE|DELETE|SELECT|WITH|BEGIN|GRANT|REVOKE|COMMENT|SET)\b",
        re.IGNORECASE,
    ),
}
_COMMENT = re.compile(rb"[ \t]*(?:#|--|//|/\*|<!--)")
_JSON_KEY = re.compile(rb'^(?P<indent>[ \t]+)"(?P<name>(?:[^"\\\n]|\\.)*)"[ \t]*:')
_HEADING = re.compile(rb"^ {0,3}(?P<level>#{1,6})(?:[ \t]+(?P<name>[^\n]*?)[ \t]*#*[ \t\r]*)?$")
_FENCE = re.compile(rb"^ {0,3}(?P<fence>`{3,}|~{3,})")
_UNDERLINE = re.compile(rb"^ {0,3}(?:=+|-+)[ \t\r]*$")


def sections(language: str, lines: list[bytes]) -> list[Piece]:
    """Pieces of a file of a language of `languages.SECTIONED`, given as lines without their line feeds.

    [] where nothing starts a section. Comments and lines that end with a comma go with the section below.
    """
    if language == "markdown":
        return _markdown(lines)
    if language == "json":
        return _first_indent(lines)
    pattern = _STARTS[language]
    return _cut(lines, pattern.match)


def _cut(lines: list[bytes], match: Callable[[bytes], re.Match[bytes] | None]) -> list[Piece]:
    pieces: list[Piece] = []
    for row, line in enumerate(lines):
        found = match(line)
        if found is None:
            continue
        first = row
        while first > 0 and (_COMMENT.match(lines[first - 1]) or lines[first - 1].rstrip().endswith(b",")):
            first -= 1
        if pieces and first <= pieces[-1].row:
            continue
        pieces.append(Piece(first, "section", _text(found["name"]), ""))
    return pieces


def _first_indent(lines: list[bytes]) -> list[Piece]:
    """JSON as people print it: the keys that are indented as the first one is."""
    indent: bytes | None = None
    pieces: list[Piece] = []
    for row, line in enumerate(lines):
        found = _JSON_KEY.match(line)
        if found is None:
            continue
        if indent is None:
            indent = found["indent"]
        if found["indent"] == indent:
            pieces.append(Piece(row, "section", _text(found["name"]), ""))
    return pieces


def _markdown(lines: list[bytes]) -> list[Piece]:
    """Headings of both kinds, not inside fences; the headings above one are its scope."""
    pieces: list[Piece] = []
    above: list[tuple[int, str]] = []
    fence = b""
    for row, line in enumerate(lines):
        marker = _FENCE.match(line)
        if marker is not None and (not fence or marker["fence"].startswith(fence)):
            fence = b"" if fence else marker["fence"]
            continue
        if fence:
            continue
        heading = _HEADING.match(line)
        if heading is not None:
            level, name, first = len(heading["level"]), _text(heading["name"]), row
        elif row and _UNDERLINE.match(line) and _is_paragraph(lines[row - 1], row - 1, lines, pieces):
            level, name, first = 1 if b"=" in line else 2, _text(lines[row - 1]), row - 1
        else:
            continue
        while above and above[-1][0] >= level:
            above.pop()
        pieces.append(Piece(first, "section", name, ".".join(title for _, title in above)))
        above.append((level, name))
    return pieces


def _is_paragraph(line: bytes, row: int, lines: list[bytes], pieces: list[Piece]) -> bool:
    """Whether `line` can be the text of an underlined heading: one line of prose, alone in its paragraph."""
    alone = row == 0 or not lines[row - 1].strip() or (bool(pieces) and pieces[-1].row == row - 1)
    return (
        alone and bool(line.strip()) and not line.startswith((b"    ", b"\t", b"-", b"*", b">", b"|", b"#"))
    )


def _text(name: bytes | None) -> str:
    return (name or b"").strip().strip(b"\"'").decode("utf-8", "replace")[:200]
