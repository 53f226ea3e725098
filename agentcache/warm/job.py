"""What the warm worker is given to do: jobs, how urgent they are, and where they come from.

A source answers two questions, what its most useful job is worth and what it is; `WarmService` asks all of them
before every step, so that whatever becomes urgent goes first, and a job that was begun goes on behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, Protocol

from agentcache.entry import INDEX_DOMAIN, EntryInfo, Tokens, entries_of_stream, own_domain

Domain = Literal["index", "own"]


class Urgency(IntEnum):
    """Classes of jobs; smaller ones go first. Within a class a source decides."""

    EDIT = 0
    """A block that was just saved: whoever saved it asks for it next."""
    LEARNED = 1
    """Prompt text that is no source block and comes back in the next request."""
    TOUCHED = 2
    """A file that an agent just used."""
    ASKED_ALONE = 3
    """A block that agents ask for without its file."""
    NEIGHBOUR = 4
    """A file that uses a touched one, or is used by it."""
    VIEW = 5
    """A file at work as a client shows it."""
    EDITED = 6
    """A file that was edited since the worker began, as far as it was not warm."""
    RECENT = 7
    """A file of the last commits."""
    IMPORTANT = 8
    """All other files, the most mentioned first."""
    ALONE = 9
    """Blocks by themselves, of the most important files first."""
    REFRESH = 10
    """Blocks behind an edit: usable as they are, computed anew when nothing else is to be done."""


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """A stream to be computed front to back, of which some intervals are kept.

    tokens: int32 [n], n >= cuts[-1]
    cuts: ascending offsets, two at least: every interval between two of them is one entry, behind all tokens before it
    urgency: which class it belongs to
    domain: "index": every request may see the entries; "own": requests with the same `salt` ("" is none) alone
    label: what people are told it is, a path or a few words
    blocks: ids of index blocks that are warm once it is done
    """

    tokens: Tokens
    cuts: tuple[int, ...]
    urgency: Urgency
    domain: Domain = "index"
    salt: str = ""
    label: str = ""
    blocks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert len(self.cuts) >= 2, self.cuts
        assert 0 <= self.cuts[0] < self.cuts[-1] <= len(self.tokens), (self.cuts, len(self.tokens))

    def entries(self, fingerprint: str) -> list[EntryInfo]:
        """Its entries for the model with this fingerprint, one an interval."""
        domain = INDEX_DOMAIN if self.domain == "index" else own_domain(self.salt)
        return entries_of_stream(fingerprint, domain, self.tokens, self.cuts)


class Source(Protocol):
    """Somebody who knows what should be warm. All methods are called from the service's thread."""

    def urgency(self) -> Urgency | None:
        """Class of the job that `take` would return; None if there is none. Asked before every step: be quick."""
        ...

    def take(self) -> Job | None:
        """The most useful job, which is the service's from now on; None if there is none after all."""
        ...

    def done(self, job: Job, tokens_computed: int | None) -> None:
        """Every entry of `job` is stored. tokens_computed: as the engine counts; None: it does not fit the budget"""
        ...

    def lost(self, entry_ids: Sequence[str]) -> None:
        """These entries were deleted to make room for more urgent ones; they may be other sources'."""
        ...
