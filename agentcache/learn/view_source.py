"""Files as clients show them: a source of jobs for the warm worker.

A view that traffic turns out to use is kept warm for the files it showed, then for those they have to do with, then for
the rest of the index as far as the budget goes; and again when a file changes.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from agentcache.context import Streams
from agentcache.entry import Tokens
from agentcache.errors import IndexError_
from agentcache.indexer import Index
from agentcache.learn.lines import KnownLines
from agentcache.learn.note import Note
from agentcache.learn.views import RAW, View, shown_lines
from agentcache.warm.budget import Budget
from agentcache.warm.job import Job, Urgency

MIN_LINES = 5
"""Lines of one file shown in a view that make it one that is used."""
MIN_TOKENS = 64
"""A shorter run shows no file."""
_NEIGHBOURS = 6
_CHECK_S = 2.0
"""How often files in a view are looked at for edits."""
_LINES_S = 60.0
"""How long the lines of an index are taken for known; an edit or two is no matter."""


class _Rank(IntEnum):
    """Why a file is kept in a view; the smaller goes first and stays longer."""

    SHOWN = 0
    NEIGHBOUR = 1
    OTHER = 2


@dataclass(slots=True)
class _Shown:
    """A file in a view. content: as it was computed, "" before; entries: of it; windows: jobs that are out
    wanted_at: when it was shown or used last
    """

    rank: _Rank
    wanted_at: float = 0.0
    content: str = ""
    entries: dict[str, int] = field(default_factory=dict)
    windows: int = 0


_Key = tuple[str, View]


class ViewSource:
    """Views of one index. Implements `agentcache.warm.job.Source`; all methods are called from one thread.

    decode: text of tokens; fingerprint: the model's; budget: of entries in views
    on_drop: has entries deleted that lost their place in it
    """

    def __init__(
        self,
        index: Index,
        streams: Streams,
        fingerprint: str,
        budget: Budget,
        on_drop: Callable[[list[str]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.index = index
        self.views: set[View] = set()
        self._streams, self._fingerprint = streams, fingerprint
        self._budget, self._on_drop, self._clock = budget, on_drop, clock
        self._files: dict[_Key, _Shown] = {}
        self._queue: dict[_Key, None] = {}  # in no order: the best is looked for
        self._jobs: list[tuple[_Key, Job]] = []
        self._out: dict[int, _Key] = {}
        self._lines: KnownLines | None = None
        self._lines_until = self._check_at = float("-inf")
        self._importance: dict[str, float] = {}

    # traffic

    def notice(self, note: Note) -> None:
        """Look at what a request had to compute for files of the index."""
        for run in note.runs:
            if len(run) >= MIN_TOKENS:
                self._look(run)
        used = {key for key, shown in self._files.items() if not note.used.keys().isdisjoint(shown.entries)}
        for key in used:
            self._want(key, _Rank.SHOWN)

    def _look(self, run: Tokens) -> None:
        lines = self._known_lines()
        votes: Counter[_Key] = Counter()
        for view, line in shown_lines(self._streams.decode(run.tolist())):
            if view != RAW and (path := lines.path_of(line)) is not None:
                votes[path, view] += 1
        for (path, view), count in votes.most_common():
            if count < MIN_LINES:
                break
            if view not in self.views:
                self.views.add(view)
                self._want_all(view)
            self._want((path, view), _Rank.SHOWN)
            for other in self.index.neighbours(path, _NEIGHBOURS):
                self._want((other, view), _Rank.NEIGHBOUR)

    def names(self, entry_ids: Iterable[str]) -> dict[str, dict[str, Any]]:
        """What its entries are called in the request log (`agentcache.warm.shown.NamesEntries`)."""
        wanted = set(entry_ids)
        return {
            entry: {"path": path, "learned": f"shown as {view.name}"}
            for (path, view), shown in self._files.items()
            for entry in wanted & shown.entries.keys()
        }

    def _want_all(self, view: View) -> None:
        self._importance = self.index.importance()
        for record in self.index.files():
            self._want((record.path, view), _Rank.OTHER)

    def _want(self, key: _Key, rank: _Rank) -> None:
        shown = self._files.get(key)
        if shown is None:
            shown = self._files[key] = _Shown(rank)
        shown.rank, shown.wanted_at = min(shown.rank, rank), self._clock()
        if not shown.content and not shown.windows:
            self._queue[key] = None

    def _known_lines(self) -> KnownLines:
        if self._lines is None or self._clock() >= self._lines_until:
            self._lines = KnownLines(self._contents())
            self._lines_until = self._clock() + _LINES_S
        return self._lines

    def _contents(self) -> Iterator[tuple[str, bytes]]:
        for record in self.index.files():
            try:
                yield record.path, self.index.read(record.path)
            except IndexError_:
                continue  # edited since it was indexed

    # the protocol of sources

    def urgency(self) -> Urgency | None:
        if self.views and self._clock() >= self._check_at:
            self._check_at = self._clock() + _CHECK_S
            self._check_edits()
        if self._jobs:
            return self._jobs[0][1].urgency
        return self._urgency(min(self._queue, key=self._order)) if self._queue else None

    def take(self) -> Job | None:
        while not self._jobs and self._queue:
            key = min(self._queue, key=self._order)
            del self._queue[key]
            self._render(key)
        if not self._jobs:
            return None
        key, job = self._jobs.pop(0)
        self._out[id(job)] = key
        return job

    def done(self, job: Job, tokens_computed: int | None) -> None:
        shown = self._files.get(self._out.pop(id(job)))
        if shown is not None:
            shown.windows -= 1

    def lost(self, entry_ids: Sequence[str]) -> None:
        gone = set(entry_ids)
        self._budget.forget(gone)
        for shown in self._files.values():
            if not gone.isdisjoint(shown.entries):
                shown.content = ""  # computed again when it is wanted again

    # work

    def _urgency(self, key: _Key) -> Urgency:
        """The rest of an index in some view is as much worth as the rest of it as it is."""
        return Urgency.IMPORTANT if self._files[key].rank is _Rank.OTHER else Urgency.VIEW

    def _order(self, key: _Key) -> tuple[int, float, str]:
        path, _ = key
        return self._files[key].rank, -self._importance.get(path, 0.0), path

    def _render(self, key: _Key) -> None:
        """Jobs for a file in a view, if there is room for it; what it had before may go."""
        path, view = key
        shown = self._files[key]
        record = self.index.file(path)
        try:
            data, blocks = self.index.snapshot(path)
        except IndexError_:
            record = None
        if record is None:
            self._drop_file(key)
            return
        streams = self._streams.of_file(*view.show(data, blocks))
        urgency, label = self._urgency(key), f"{path} ({view.name})"
        jobs = [Job(stream.tokens, stream.cuts, urgency, label=label) for stream in streams]
        entries = {i.id: i.num_tokens for job in jobs for i in job.entries(self._fingerprint)}
        old = [entry for entry in shown.entries if entry not in entries]
        self._budget.demote(old)
        victims = self._make_room(key, entries)
        if victims is None:
            shown.content = ""  # wanted again, it is tried again
            return
        if victims:
            self._on_drop(victims)
            self.lost(victims)
        shown.content = record.content_id
        shown.entries, shown.windows = entries, len(jobs)
        self._jobs += [(key, job) for job in jobs]

    def _make_room(self, key: _Key, entries: dict[str, int]) -> list[str] | None:
        """Enter a file's entries into the budget; what must go for them, or None. Of files that were shown, those go
        that were not wanted for the longest time."""
        rank = self._files[key].rank
        while (victims := self._budget.hold(entries, int(rank))) is None and rank is _Rank.SHOWN:
            others = [
                (o.wanted_at, k) for k, o in self._files.items() if k != key and o.content and not o.windows
            ]
            if not others:
                break
            oldest = self._files[min(others, key=lambda one: one[0])[1]]
            self._budget.demote(oldest.entries)
            oldest.content = ""
        return victims

    def _check_edits(self) -> None:
        """Files whose text has changed since they were rendered come again."""
        for key, shown in self._files.items():
            if shown.content and not shown.windows:
                record = self.index.file(key[0])
                if record is None or record.content_id != shown.content:
                    self._queue[key] = None

    def _drop_file(self, key: _Key) -> None:
        shown = self._files.pop(key)
        self._budget.demote(shown.entries)
