"""The ways agents show a file: lines as they are, numbered, or escaped as JSON; and which of them a trace uses."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from agentcache.indexer import Block
from agentcache.learn.lines import MIN_LINE

_HTML_SAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "'": "\\u0027"}

NUMBERS: dict[str, Callable[[int], str]] = {
    "raw": lambda line: "",
    "tab": lambda line: f"{line}\t",
    "cat-n": lambda line: f"{line:6d}\t",
    "colon": lambda line: f"{line}: ",
    "colon-tight": lambda line: f"{line}:",
}
ESCAPES: dict[str, Callable[[str], str]] = {
    "": lambda text: text,
    "json": lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    "json-html": lambda text: "".join(_HTML_SAFE.get(c, c) for c in json.dumps(text)[1:-1]),
}


@dataclass(frozen=True, slots=True)
class View:
    """One way to show a file. numbers: a name in NUMBERS; escape: one in ESCAPES."""

    numbers: str = "raw"
    escape: str = ""

    @property
    def name(self) -> str:
        return f"{self.numbers}+{self.escape}" if self.escape else self.numbers

    def show(self, data: bytes, blocks: Sequence[Block]) -> tuple[bytes, list[Block]]:
        """A file and its blocks as this view shows them: other bytes, the same blocks around them."""
        number, escape = NUMBERS[self.numbers], ESCAPES[self.escape]
        shown: list[Block] = []
        parts: list[bytes] = []
        size = 0
        fresh = True  # the next text begins a line
        line = 1
        for block in blocks:
            text = data[block.start_byte : block.end_byte].decode(errors="replace")
            out = []
            for piece in _lines(text):
                out.append((number(line) if fresh else "") + piece)
                fresh = piece.endswith("\n")
                line += fresh
            part = escape("".join(out)).encode()
            shown.append(block._replace(start_byte=size, end_byte=size + len(part)))
            parts.append(part)
            size += len(part)
        return b"".join(parts), shown


RAW = View()
_NUMBERED = re.compile(r"( *)\d+(\t|:)(.*)", re.DOTALL)


def recognise(text: str, known: Container[str]) -> Counter[View]:
    """In which views `text` shows known lines (without their line ends), and how many lines in each."""
    votes = Counter(
        view for view, line in shown_lines(text) if len(line.strip()) >= MIN_LINE and line in known
    )
    del votes[RAW]
    return votes


def shown_lines(text: str) -> Iterator[tuple[View, str]]:
    """The lines of `text` as they would be in a file, each with the view that it would be shown in."""
    for escape, plain in _unescaped(text):
        for line in plain.split("\n"):
            yield from ((View(numbers, escape), bare) for numbers, bare in _unnumbered(line))


def _unescaped(text: str) -> Iterator[tuple[str, str]]:
    yield "", text
    if "\\n" in text:
        # an escaped string never holds a quote or a line end by itself: what is between them may be one
        for part in re.split(r'(?<!\\)"|\n', text):
            with suppress(ValueError):
                escape = "json-html" if "\\u003" in part or "\\u0026" in part else "json"
                yield escape, json.loads(f'"{part.strip()}"')


def _unnumbered(line: str) -> Iterator[tuple[str, str]]:
    """Names of NUMBERS and the line without its number, all that are possible."""
    match = _NUMBERED.match(line)
    if match is None:
        yield "raw", line
        return
    spaces, mark, rest = match.groups()
    if mark == "\t":
        yield ("cat-n" if spaces else "tab"), rest
        return
    yield "colon-tight", rest
    if rest.startswith(" "):
        yield "colon", rest[1:]


def _lines(text: str) -> list[str]:
    """Lines with their ends, which are `\\n` and nothing else, as those of blocks are."""
    lines = [f"{line}\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]
