"""Where lines start. A line ends behind `\\n`; the last one may end without.

UTF-16 and UTF-32 files are told by their byte-order mark; their line feed is a whole code unit, so that a
block never starts in the middle of a character.
"""

from __future__ import annotations

from itertools import accumulate

_WIDE_NEWLINES = (
    (b"\xff\xfe\x00\x00", 4, b"\n\x00\x00\x00"),
    (b"\x00\x00\xfe\xff", 4, b"\x00\x00\x00\n"),
    (b"\xff\xfe", 2, b"\n\x00"),
    (b"\xfe\xff", 2, b"\x00\n"),
)


def is_wide(data: bytes) -> bool:
    """Whether `data` starts with the byte-order mark of UTF-16 or UTF-32."""
    return data.startswith((b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff"))


def line_starts(data: bytes) -> list[int]:
    """Byte offset of each line of `data`, ascending, first 0; [] for b"". Never holds `len(data)`."""
    if not data:
        return []
    if is_wide(data):
        return _wide_line_starts(data)
    pieces = data.split(b"\n")
    starts = list(accumulate((len(piece) + 1 for piece in pieces), initial=0))
    # The piece behind the last line feed is a line only if it holds something.
    return starts[: len(pieces)] if pieces[-1] else starts[: len(pieces) - 1]


def _wide_line_starts(data: bytes) -> list[int]:
    _, width, newline = next(row for row in _WIDE_NEWLINES if data.startswith(row[0]))
    starts = [0]
    at = data.find(newline)
    while at >= 0:
        end = at + width
        if at % width == 0:
            if end < len(data):
                starts.append(end)
            at = data.find(newline, end)
        else:
            at = data.find(newline, at + 1)
    return starts
