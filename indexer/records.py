"""What travels between the indexer and everybody else: small records, paths as posix strings below the root.

Lines count from 1 and both ends belong to a block; bytes count from 0 and the end does not. A line ends at
`\\n` and nowhere else, so that line numbers agree with editors, `grep -n` and `git`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Block(NamedTuple):
    """One piece of one file. The blocks of a file tile it: each starts at the byte where the one before ends.

    id: versioned content hash of the bytes alone (`identity.block_id`): equal text has an equal id anywhere
    path: file below the root, posix; bytes that are no UTF-8 are surrogate-escaped
    kind: "module head", "class head", "class", "function", "method", "section", "text" and the like
    name: what the source calls it; "" where it has no name
    scope: names around it, dotted ("Outer.Inner"); "" at the top
    """

    id: str
    path: str
    kind: str
    name: str
    start_line: int
    end_line: int
    start_byte: int
    end_byte: int
    scope: str = ""

    @property
    def qualified_name(self) -> str:
        return f"{self.scope}.{self.name}" if self.scope and self.name else self.name


class Reference(NamedTuple):
    """One line of `path` that mentions `name`, and the block that the line is in."""

    name: str
    path: str
    line: int
    block: Block


class Problem(NamedTuple):
    """One file's trouble, in a line. The file is left out, or kept as line windows if the reason says so."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class FileRecord:
    """An indexed file. `content_id` is the versioned hash of its bytes; `size` is in bytes."""

    path: str
    language: str
    size: int
    content_id: str
    num_blocks: int


@dataclass(frozen=True, slots=True)
class ChangeRecord:
    """What became of a file's blocks. `added` and `kept` stand where they are now, `removed` where they were.

    A block that only moved is kept. A file that appeared has only `added`, one that went only `removed`.
    """

    path: str
    added: list[Block]
    removed: list[Block]
    kept: list[Block]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an update is. `total_*` cover the files that must be read; `seconds` since the update began."""

    files: int
    total_files: int
    bytes: int
    total_bytes: int
    seconds: float

    @property
    def bytes_per_second(self) -> float:
        return self.bytes / self.seconds if self.seconds > 0 else 0.0

    @property
    def eta_seconds(self) -> float | None:
        """Seconds still to go at the rate so far; None before there is one."""
        if not self.bytes:
            return None
        return (self.total_bytes - self.bytes) / self.bytes_per_second


@dataclass(frozen=True, slots=True)
class IndexReport:
    """What an update found and did.

    files, blocks, bytes: what the index holds now; languages: files by language
    seconds: wall clock of the update
    parsed_files: files whose blocks were (re)computed or attached; unchanged_files: files left as they were
    skipped: entries left out, by reason; a left-out folder counts once
    errors: every file in trouble, sorted by path
    changes: one record a file whose blocks changed; empty if the caller asked for none
    """

    files: int
    blocks: int
    languages: Mapping[str, int]
    bytes: int
    seconds: float
    parsed_files: int
    unchanged_files: int
    skipped: Mapping[str, int]
    errors: list[Problem]
    changes: list[ChangeRecord] = field(default_factory=list)
