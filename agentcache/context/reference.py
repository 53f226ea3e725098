"""What a reference to code may look like.

    path            a whole file                    src/shapes.py
    path#Name       a definition, dotted            src/shapes.py#Square.area
    path:10-80      the blocks that hold the lines  src/shapes.py:10-80 (or :10)

Each may begin with a root's name and a colon (`repo:src/shapes.py`). File names may hold `#`, `:` and digits too, so
a text can be read in several ways; `readings` gives them all, and whoever knows the files picks the one that exists.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

from agentcache.errors import ReferenceError_

MAX_LENGTH = 4096
"""Characters of a reference: as long as the longest path."""
_MAX_SPLITS = 8
_LINES = re.compile(r"(?P<path>.+):(?P<first>[0-9]{1,9})(?:-(?P<last>[0-9]{1,9}))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Reference:
    """One reading of a reference.

    path: posix, below the root; root: name of the root, "" for whichever has the path
    name: dotted name of a definition, "" for none; lines: first and last, counted from 1, or None
    """

    path: str
    root: str = ""
    name: str = ""
    lines: tuple[int, int] | None = None

    def __str__(self) -> str:
        text = f"{self.root}:{self.path}" if self.root else self.path
        if self.name:
            return f"{text}#{self.name}"
        return f"{text}:{self.lines[0]}-{self.lines[1]}" if self.lines else text


def shown(text: str) -> str:
    """A reference as an error names it: short, and without characters that a terminal or a log would obey."""
    short = text if len(text) <= 160 else f"{text[:150]}…"
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in short)


def readings(text: str, roots: Iterable[str] = ()) -> list[Reference]:
    """Everything that `text` may mean, given the roots' names; never [].

    Raises ReferenceError_ for what can be no reference: empty, over-long, with a NUL, absolute, or with a `..` in it.
    """
    if not text:
        raise ReferenceError_("a reference is empty: write path, path#Name or path:10-80")
    if len(text) > MAX_LENGTH:
        raise ReferenceError_(f"{shown(text)} is longer than {MAX_LENGTH} characters: no path is")
    if "\0" in text:
        raise ReferenceError_(f"{shown(text)} has a NUL in it: no path has")
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        raise ReferenceError_(f"{shown(text)} is no text that a path can be") from error
    rests = [("", text), *((root, text[len(root) + 1 :]) for root in roots if text.startswith(f"{root}:"))]
    found = [_checked(each, text) for root, rest in rests if rest for each in _split(root, rest)]
    return list(dict.fromkeys(found))


def _split(root: str, text: str) -> list[Reference]:
    """`text` as a path, as a path with lines, and as a path with a name, cut at each `#`."""
    found = [Reference(text, root)]
    matched = _LINES.fullmatch(text)
    if matched is not None:
        first = int(matched["first"])
        found.append(Reference(matched["path"], root, lines=(first, int(matched["last"] or first))))
    cut = -1
    for _ in range(_MAX_SPLITS):
        cut = text.find("#", cut + 1)
        if cut < 0:
            break
        if cut and text[cut + 1 :]:
            found.append(Reference(text[:cut], root, name=text[cut + 1 :]))
    return found


def _checked(reference: Reference, text: str) -> Reference:
    """The reading with a leading `./` taken off. Raises ReferenceError_ if its path leads out of a root."""
    path = reference.path
    if path.startswith("/"):
        raise ReferenceError_(f"{shown(text)} is absolute: give a path below an indexed root")
    if ".." in path.split("/"):
        raise ReferenceError_(f"{shown(text)} leaves the indexed roots: give a path below one, without ..")
    while path.startswith("./") and len(path) > 2:
        path = path[2:].lstrip("/")
    return Reference(path or reference.path, reference.root, reference.name, reference.lines)
