"""An index as a source of jobs: what its files and their edits make useful, in that order."""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from agentcache.context import Stream, Streams
from agentcache.entry import Tokens
from agentcache.errors import IndexError_
from agentcache.indexer import Block, ChangeRecord, Index
from agentcache.indexer.checkout import GitRefused
from agentcache.warm.edits import changed_pieces
from agentcache.warm.job import Job, Urgency
from agentcache.warm.kept import Kept, Owner
from agentcache.warm.order import by_importance, is_alone
from agentcache.warm.progress import Edit
from agentcache.warm.queue import EACH_ALONE, WarmItem, WarmQueue

_NEIGHBOURS = 6
_WHOLE_FILE_SHARE = 0.5
"""A request that reuses a smaller share of a file's entries has asked for blocks, not for the file."""


@dataclass(slots=True, eq=False)
class _Edit:
    """An edit that is not warm yet. added: ids of the new blocks; saved_at: seconds since the epoch"""

    added: set[str]
    saved_at: float
    tokens: int = 0
    file_tokens: int = 0


@dataclass(slots=True, eq=False)
class _Work:
    """An item whose jobs are out. owner: whose its entries are; streams: the whole file's windows, if it is that"""

    owner: Owner
    jobs_left: int
    streams: list[Stream] | None = None
    edit: _Edit | None = None
    entries: dict[str, tuple[str, ...]] = field(default_factory=dict)
    refused: bool = False


class IndexSource:
    """Jobs for one index. `edited` may be called from any thread; all else from the service's.

    fingerprint: the model's; on_dead: told of entries that nothing here wants any more; on_stored: told of entries
    that exist now, with their file's importance and the number of files
    """

    def __init__(
        self,
        index: Index,
        streams: Streams,
        fingerprint: str,
        on_dead: Callable[[list[str]], None] = lambda entries: None,
        on_stored: Callable[[Iterable[str], float, int], None] = lambda entries, importance, files: None,
    ) -> None:
        self.index = index
        self.last_edit: Edit | None = None
        self.queue = WarmQueue()
        self._streams = streams
        self._fingerprint = fingerprint
        self._on_dead, self._on_stored = on_dead, on_stored
        self._kept = Kept()
        # Files as they were when they were last warm from end to end.
        self._warm_files: dict[str, list[Stream]] = {}
        self._ready: deque[Job] = deque()
        # By id of a job that is out: what it is for, and the blocks of each of its intervals.
        self._out: dict[int, tuple[_Work, Sequence[tuple[str, ...]]]] = {}
        self._edits: dict[str, _Edit] = {}
        self._changes: deque[tuple[ChangeRecord, float]] = deque()
        self._missed: dict[str, set[str]] = {}
        self._asked_alone: set[str] = set()
        self._num_blocks: int | None = None  # counted when somebody asks: it takes longer than an edit may
        self._count()

    # what there is to do

    def fill(self, only: Container[str] | None = None) -> None:
        """Queue everything in the index, or the paths in `only`."""
        self._count()
        recent = [path for path in self._recently_committed() if path in self._blocks]
        for path, urgency in (
            *((path, Urgency.RECENT) for path in recent),
            *((path, Urgency.IMPORTANT) for path in by_importance(self.index)),
        ):
            if only is None or path in only:
                self.queue.add(WarmItem(path), urgency)
                self.queue.add(WarmItem(path, EACH_ALONE), Urgency.ALONE)

    def add(self, items: Iterable[WarmItem], urgency: Urgency) -> None:
        """Queue `items`, in this order."""
        for item in items:
            self.queue.add(item, urgency)

    def edited(self, changes: Sequence[ChangeRecord]) -> None:
        """The watcher's news. The changed blocks come first, what stands behind them last."""
        self._changes.extend((change, _saved_at(self.index, change.path)) for change in changes)

    def used(self, requests: Iterable[Sequence[str]]) -> None:
        """Agents' requests have reused these entries: one list a request, the oldest first."""
        for entries in requests:
            by_owner: Counter[tuple[str, str]] = Counter()
            for entry in entries:
                by_owner.update(self._kept.owners(entry))
            for (path, owner), count in by_owner.items():
                self._used_file(path, owner, count, entries)

    def _used_file(self, path: str, owner: str, count: int, entries: Sequence[str]) -> None:
        if not owner and count < _WHOLE_FILE_SHARE * self._kept.count((path, "")):
            blocks = {block for entry in entries for block in self._kept.blocks((path, ""), entry)}
            self._asked_alone |= blocks
            for block in self._alone_blocks(path):
                if block.id in blocks and not self._kept.has((path, block.id)):
                    self.queue.add(WarmItem(path, block.id), Urgency.ASKED_ALONE)
        if path not in self._warm_files:
            self.queue.add(WarmItem(path), Urgency.TOUCHED)
        for other in self.index.neighbours(path, _NEIGHBOURS):
            if other not in self._warm_files:
                self.queue.add(WarmItem(other), Urgency.NEIGHBOUR)

    # the protocol of sources

    def urgency(self) -> Urgency | None:
        self._take_changes()
        classes = [self._ready[0].urgency] if self._ready else []
        if self._edits:
            classes.append(Urgency.EDIT)
        waiting = self.queue.urgency()
        return min([*classes, waiting] if waiting is not None else classes, default=None)

    def take(self) -> Job | None:
        while (urgency := self.urgency()) is not None:
            if self._ready and self._ready[0].urgency <= urgency:
                return self._ready.popleft()
            jobs = self._edit_jobs() if urgency == Urgency.EDIT else self._item_jobs(*self.queue.pop())
            self._ready.extendleft(reversed(list(jobs)))
        return None

    def done(self, job: Job, tokens_computed: int | None) -> None:
        work, covers = self._out.pop(id(job))
        work.jobs_left -= 1
        if tokens_computed is None:
            work.refused = True
        else:
            entries = {
                info.id: blocks for info, blocks in zip(job.entries(self._fingerprint), covers, strict=True)
            }
            work.entries.update(entries)
            self._kept.add(work.owner, entries)
            self._on_stored(entries, self._importance.get(work.owner[0], 0.0), len(self._blocks))
            if work.edit is not None:
                work.edit.tokens += tokens_computed
        if not work.jobs_left and not work.refused:
            self._finish(work)

    def lost(self, entry_ids: Sequence[str]) -> None:
        for path, block in {owner for entry in entry_ids for owner in self._kept.owners(entry)}:
            if not block:
                self._warm_files.pop(path, None)
        self._kept.lost(entry_ids)

    # progress

    @property
    def kept(self) -> Kept:
        """Which entries stand for what. Not to be changed."""
        return self._kept

    def num_blocks(self) -> int:
        """Blocks of the index, equal ones counted once."""
        if self._num_blocks is None:
            self._num_blocks = self.index.num_different_blocks()
        return self._num_blocks

    def warm_blocks(self) -> int:
        return min(self.num_blocks(), len(self._kept.warm_blocks))

    def queued_blocks(self) -> int:
        waiting = sum(
            self._blocks.get(item.path, 1) if item.block in (None, EACH_ALONE) else 1 for item in self.queue
        )
        return (
            waiting
            + sum(len(job.blocks) for job in self._ready)
            + sum(len(e.added) for e in self._edits.values())
        )

    def queue_counts(self) -> dict[str, int]:
        """Items that wait, by the names of their classes."""
        counts = self.queue.counts()
        counts.update(job.urgency for job in self._ready)
        counts[Urgency.EDIT] += len(self._edits)
        return {urgency.name.lower(): counts[urgency] for urgency in Urgency if counts[urgency]}

    def _count(self) -> None:
        self._blocks = {record.path: record.num_blocks for record in self.index.files()}
        self._num_blocks = None
        self._importance = self.index.importance()

    # edits

    def _take_changes(self) -> None:
        if not self._changes:
            return
        while self._changes:
            change, saved_at = self._changes.popleft()
            if not change.added and not change.kept:
                self.queue.discard(change.path)
                self._edits.pop(change.path, None)
                self._warm_files.pop(change.path, None)
                self._blocks.pop(change.path, None)
                self._on_dead(self._kept.forget_path(change.path))
                continue
            self._blocks[change.path] = len(change.added) + len(change.kept)
            edit = self._edits.setdefault(change.path, _Edit(set(), saved_at))
            edit.added |= {block.id for block in change.added} | self._missed.pop(change.path, set())
        self._num_blocks = None

    def _edit_jobs(self) -> Iterator[Job]:
        """Jobs for the oldest edit: its changed pieces. The rest of the file is queued behind everything else."""
        path = next(iter(self._edits))
        edit = self._edits.pop(path)
        try:
            data, blocks = self.index.snapshot(path)
        except IndexError_:
            self._missed.setdefault(path, set()).update(edit.added)
            return  # saved again meanwhile: the watcher comes again
        streams = self._streams.of_file(data, blocks)
        known = self._warm_files.get(path)
        if known is not None:
            pieces = changed_pieces(known, streams, self._streams.max_tokens)
            jobs = [(_job(p.tokens, p.cuts, Urgency.EDIT, path, p.covers), p.covers) for p in pieces]
        else:
            last = max((n for n, block in enumerate(blocks) if block.id in edit.added), default=-1)
            upto = self._streams.of_file(data, blocks[: last + 1])
            jobs = [(_job(s.tokens, s.cuts, Urgency.EDIT, path, s.covers), s.covers) for s in upto]
        edit.file_tokens = sum(len(stream.tokens) for stream in streams)
        self.queue.add(WarmItem(path), Urgency.REFRESH if known is not None else Urgency.EDITED)
        self._queue_alone(path, blocks, edit)
        work = _Work((path, ""), len(jobs), edit=edit)
        for job, covers in jobs:
            self._out[id(job)] = work, covers
            yield job
        if not jobs:
            self._finish(work)

    def _queue_alone(self, path: str, blocks: Sequence[Block], edit: _Edit) -> None:
        for block in blocks:
            if block.id in edit.added and is_alone(block):
                asked = block.id in self._asked_alone
                self.queue.add(WarmItem(path, block.id), Urgency.ASKED_ALONE if asked else Urgency.ALONE)

    # items

    def _item_jobs(self, item: WarmItem, urgency: Urgency) -> Iterator[Job]:
        try:
            data, blocks = self.index.snapshot(item.path)
        except IndexError_:
            return  # edited or gone since it was indexed: the watcher names it again
        if item.block is None:
            streams = self._streams.of_file(data, blocks)
            work = _Work((item.path, ""), len(streams), streams)
            for stream in streams:
                yield self._send(stream, urgency, item.path, work)
            return
        for block in blocks:
            if item.block == block.id or (item.block == EACH_ALONE and is_alone(block)):
                alone = self._streams.alone(data, block)
                if alone is not None:
                    label = f"{item.path}#{block.qualified_name or block.start_line}"
                    yield self._send(alone, urgency, label, _Work((item.path, block.id), 1))

    def _send(self, stream: Stream, urgency: Urgency, label: str, work: _Work) -> Job:
        covers = stream.covers
        job = _job(stream.tokens, stream.cuts, urgency, label, covers)
        self._out[id(job)] = work, covers
        return job

    def _finish(self, work: _Work) -> None:
        """All jobs of an item are stored."""
        path = work.owner[0]
        if work.streams is not None:
            self._warm_files[path] = work.streams
            dead = self._kept.replace(work.owner, work.entries)
            blocks = {block for stream in work.streams for block in stream.blocks}
            self._on_dead(dead + self._kept.keep_blocks(path, blocks))
        if work.edit is not None:
            edit = work.edit
            seconds = round(max(0.0, time.time() - edit.saved_at), 3)
            self.last_edit = Edit(path, len(edit.added), edit.tokens, edit.file_tokens, seconds, time.time())

    def _alone_blocks(self, path: str) -> list[Block]:
        try:
            return [block for block in self.index.blocks(path) if is_alone(block)]
        except IndexError_:
            return []

    def _recently_committed(self) -> list[str]:
        checkout = self.index.checkout()
        if checkout is None:
            return []
        try:
            return checkout.recently_committed()
        except GitRefused:
            return []


def _job(
    tokens: Tokens, cuts: tuple[int, ...], urgency: Urgency, label: str, covers: Sequence[tuple[str, ...]]
) -> Job:
    blocks = tuple(block for some in covers for block in some)
    return Job(tokens, cuts, urgency, label=label, blocks=blocks)


def _saved_at(index: Index, path: str) -> float:
    """When the file was written, seconds since the epoch; now, if it is gone."""
    try:
        return min(time.time(), os.stat(index.root / path).st_mtime)
    except OSError:
        return time.time()
