"""Where two texts part, in words: what stands there in each, and what kind of thing it is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

SHOWN: Final = 48
"""Characters of an excerpt, at most."""

_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*"
_DAY = r"(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?"
_CLOCK = r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?"
_CAUSES: Final = (
    (
        "timestamp",
        re.compile(
            rf"\d{{4}}-\d{{2}}-\d{{2}}(?:[T ]{_CLOCK}(?:Z|[+-]\d{{2}}:?\d{{2}})?)?"
            rf"|(?:{_DAY},? +)?(?:\d{{1,2}} {_MONTH}|{_MONTH} +\d{{1,2}})(?:,? {_CLOCK}| \d{{4}}|,? \d{{4}})*"
            rf"|{_DAY}(?!\w)|{_CLOCK}|(?<!\d)[12]\d{{9}}(?:\d{{3}})?(?:\.\d+)?(?!\d)"
        ),
    ),
    (
        "identifier",
        re.compile(
            r"(?<![0-9a-zA-Z])(?:[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}|(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,64})(?!\w)"
            r"|(?<!\w)[a-zA-Z]{2,12}[-_](?=[a-zA-Z]*\d)(?=\d*[a-zA-Z])[0-9a-zA-Z]{8,}"
        ),
    ),
    (
        "path",
        re.compile(
            r"(?:[A-Za-z]:)?[\w.~-]*(?:[/\\][\w.~-]+)+[/\\]?|(?<!\w)\w[\w-]*\.(?:[a-z]{1,2}|[jt]sx?|json|toml|yaml|java|cpp|txt)(?!\w)"
        ),
    ),
    ("counter", re.compile(r"\d+(?:\.\d+)?")),
)
CAUSES: Final = (*(name for name, _ in _CAUSES), "text")


@dataclass(frozen=True, slots=True)
class Difference:
    """cause: one of `CAUSES`; line: the beginning of the line it is in; now, was: what the two texts say there"""

    cause: str
    line: str
    now: str
    was: str


def difference(before: str, now: str, was: str) -> Difference:
    """before: what both texts say up to the place; now, was: how each goes on, "" at its end"""
    return Difference(cause_of(before, now, was), line_at(before), now[:SHOWN], was[:SHOWN])


def cause_of(before: str, now: str, was: str) -> str:
    """What kind of thing differs: the same kind has to stand across the place in both texts."""
    begun = before[before.rfind("\n") + 1 :][-2 * SHOWN :]
    ours, theirs = begun + _line(now), begun + _line(was)
    for name, pattern in _CAUSES:
        if _across(pattern, ours, len(begun)) and _across(pattern, theirs, len(begun)):
            return name
    return "text"


def line_at(before: str) -> str:
    """The line that a place is in, up to it; the one before where it begins a line."""
    start = before.rfind("\n") + 1
    if start == len(before):
        start = before.rfind("\n", 0, max(0, len(before) - 1)) + 1
    return before[start:].strip()[:SHOWN]


def _line(text: str) -> str:
    """The first line of `text`, at most so much as is looked at."""
    return text.partition("\n")[0][: 2 * SHOWN]


def _across(pattern: re.Pattern[str], text: str, at: int) -> bool:
    """Whether a match reaches the place from one side at least."""
    return any(match.start() <= at <= match.end() for match in pattern.finditer(text))
