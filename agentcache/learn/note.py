"""What the engine notes of a request for those who learn: token ids and entry ids, never K/V, never text."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from agentcache.entry import Tokens, as_tokens

QUEUE_BYTES = 8 << 20
"""Of token ids that wait to be asked for. The oldest notes go first: what came last is likeliest to come again."""


@dataclass(frozen=True, slots=True, eq=False)
class Note:
    """One request that was admitted, or the answer of one that ended.

    salt: its `cache_salt`, "" if none: what it showed is for requests with the same one
    runs: tokens it had to compute (`agentcache.learn.runs`), int32 each, in the prompt's order
    answer: tokens it generated, int32 [n], end marks included
    used: entry id -> tokens reused of it, recomputed ones included
    """

    salt: str
    runs: tuple[Tokens, ...] = ()
    answer: Tokens = field(default_factory=lambda: as_tokens([]))
    used: Mapping[str, int] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return self.answer.nbytes + sum(run.nbytes for run in self.runs) + 64 * len(self.used)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        runs = [run.tolist() for run in self.runs]
        return {"salt": self.salt, "runs": runs, "answer": self.answer.tolist(), "used": dict(self.used)}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Note:
        """Of `to_dict`. Raises KeyError, TypeError or ValueError for anything else."""
        return cls(
            str(given["salt"]),
            tuple(as_tokens(run) for run in given["runs"]),
            as_tokens(given["answer"]),
            {str(entry): int(tokens) for entry, tokens in given["used"].items()},
        )


class NoteQueue:
    """Notes that wait to be asked for, up to `max_bytes` of them. Thread-safe.

    num_added, num_dropped: since it was made; a note is dropped for want of room, never quietly
    """

    def __init__(self, max_bytes: int = QUEUE_BYTES) -> None:
        self._max_bytes, self._bytes = max_bytes, 0
        self._notes: deque[Note] = deque()
        self._lock = Lock()
        self.num_added = self.num_dropped = 0

    def __len__(self) -> int:
        return len(self._notes)

    def add(self, note: Note) -> None:
        with self._lock:
            self._notes.append(note)
            self._bytes += note.nbytes
            self.num_added += 1
            while self._bytes > self._max_bytes:
                self._bytes -= self._notes.popleft().nbytes
                self.num_dropped += 1

    def take(self) -> tuple[list[Note], int]:
        """All that wait, oldest first; and how many were ever added."""
        with self._lock:
            taken = list(self._notes)
            self._notes.clear()
            self._bytes = 0
            return taken, self.num_added
