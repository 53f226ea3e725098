"""One file's bytes to blocks, names and mentions: a pure function of bytes, language and time budget."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple

from agentcache.indexer import windows
from agentcache.indexer.identity import block_id
from agentcache.indexer.languages import BY_NAME, SECTIONED
from agentcache.indexer.lines import is_wide, line_starts
from agentcache.indexer.sections import sections
from agentcache.indexer.tiling import Piece

PARSER_VERSION = 1
"""Raise it when the same bytes may get other blocks, definitions or mentions than before."""

PARSE_BUDGET_S = 5.0
"""CPU seconds that one file may take before it is kept as line windows: a busy machine changes no block."""


class ParsedBlock(NamedTuple):
    """A block without its path; fields as in `records.Block`."""

    id: str
    kind: str
    name: str
    scope: str
    start_line: int
    end_line: int
    start_byte: int
    end_byte: int


class ParsedName(NamedTuple):
    """A name that is defined in block number `ordinal` (from 0), on `line` (from 1)."""

    name: str
    kind: str
    ordinal: int
    line: int


class ParsedMention(NamedTuple):
    """The lines (ascending, from 1) that mention `name`."""

    name: str
    lines: list[int]


class Parsed(NamedTuple):
    """What is in a file. `note` says why it was kept as line windows; "" if it was not."""

    note: str
    blocks: list[ParsedBlock]
    names: list[ParsedName]
    mentions: list[ParsedMention]


def parse_bytes(data: bytes, language: str, budget_s: float = PARSE_BUDGET_S) -> Parsed:
    """Blocks that tile `data`, for any bytes and any language name. Never raises for what is in `data`."""
    starts = line_starts(data)
    if language in BY_NAME and not is_wide(data):
        # The grammar, its wheel and tree-sitter itself are needed only here.
        from agentcache.indexer.grammar import OutOfTime
        from agentcache.indexer.source import parse_source

        try:
            return parse_source(data, starts, language, time.thread_time() + budget_s)
        except OutOfTime:
            return parse_windows(
                data, starts, f"parsing took longer than {budget_s:g} s, kept as line windows"
            )
        except ImportError as error:
            return parse_windows(data, starts, f"no grammar for {language} ({error}), kept as line windows")
    if language in SECTIONED and not is_wide(data):
        pieces = sections(language, _lines(data, starts))
        if pieces:
            if pieces[0].row > 0:
                pieces.insert(0, Piece(0, "text", "", ""))
            names = [(piece.name, piece.kind, piece.row) for piece in pieces if piece.name]
            return assemble(data, starts, bounded(data, starts, pieces), names, {})
    return parse_windows(data, starts)


def parse_windows(data: bytes, starts: list[int] | None = None, note: str = "") -> Parsed:
    """Line windows of bounded size: what every file can be cut into."""
    if starts is None:
        starts = line_starts(data)
    cuts = windows.cut(data, starts, 0, len(starts), (), windows.TEXT_BOUNDS) if starts else []
    pieces = [Piece(row, "text", "", "") for row in [0, *cuts]] if starts else []
    return assemble(data, starts, pieces, [], {}, note)


def assemble(
    data: bytes,
    starts: list[int],
    pieces: list[Piece],
    names: list[tuple[str, str, int]],
    mentions: dict[str, list[int]],
    note: str = "",
) -> Parsed:
    """Give pieces (ascending rows, first 0) their ends and ids. `names`: (name, kind, row), rows from 0."""
    rows = [piece.row for piece in pieces]
    ends = [*rows[1:], len(starts)]
    blocks = []
    view = memoryview(data)
    for piece, end in zip(pieces, ends, strict=False):
        start_byte = starts[piece.row]
        end_byte = starts[end] if end < len(starts) else len(data)
        identity = block_id(view[start_byte:end_byte])
        blocks.append(
            ParsedBlock(
                identity, piece.kind, piece.name, piece.scope, piece.row + 1, end, start_byte, end_byte
            )
        )
    return Parsed(
        note,
        blocks,
        [ParsedName(name, kind, bisect_right(rows, row) - 1, row + 1) for name, kind, row in names],
        [ParsedMention(name, [row + 1 for row in at]) for name, at in mentions.items()],
    )


def _lines(data: bytes, starts: list[int]) -> list[bytes]:
    return data.split(b"\n")[: len(starts)]


def bounded(
    data: bytes,
    starts: list[int],
    pieces: list[Piece],
    levels: Callable[[int, int], list[list[int]]] = lambda first, end: [],
) -> list[Piece]:
    """The same pieces, too long ones in parts. `levels(first, end)`: rows to cut at, as in `windows.cut`."""
    result: list[Piece] = []
    for at, piece in enumerate(pieces):
        end = pieces[at + 1].row if at + 1 < len(pieces) else len(starts)
        result.append(piece)
        if windows.fits(starts, len(data), piece.row, end, windows.BLOCK_BOUNDS):
            continue
        for row in windows.cut(data, starts, piece.row, end, levels(piece.row, end), windows.BLOCK_BOUNDS):
            result.append(Piece(row, f"{piece.kind} part", piece.name, piece.scope))
    return result
