"""The warm worker: sends files and blocks through the engine at low priority, so that their entries exist.

It works in small steps: each request adds at most `step_tokens` of new text behind what is already stored, so an
agent's request never waits for more than one step of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from agentcache.context import Stream, Streams
from agentcache.engine_client import EngineClient
from agentcache.entry import INDEX_DOMAIN, entries_of_stream
from agentcache.errors import IndexError_
from agentcache.indexer import Index

_NOT_ALONE = ("module head", "text", "section")
"""Kinds of blocks that nobody asks for by themselves."""


@dataclass(frozen=True, slots=True)
class WarmItem:
    """One thing to keep warm. block: id of the only block to compute, by itself; None: the whole file."""

    path: str
    block: str | None = None


@dataclass(slots=True)
class Progress:
    """How warm one index is.

    blocks: different blocks in the index; warm_blocks: those with an entry, in their file's context or alone
    queued_blocks: what `run` still has to look at, a block once a context
    tokens_computed: since the worker was made
    """

    blocks: int = 0
    warm_blocks: int = 0
    queued_blocks: int = 0
    tokens_computed: int = 0
    state: str = "idle"


class WarmWorker:
    """Warms items of one index through one engine.

    model: name the engine serves; fingerprint: the engine's, from its status
    on_progress: told after every step, from the thread that runs
    step_tokens: most new tokens a request computes (a longer block is one step by itself)
    """

    def __init__(
        self,
        client: EngineClient,
        index: Index,
        streams: Streams,
        model: str,
        fingerprint: str,
        step_tokens: int = 512,
    ) -> None:
        self.progress = Progress()
        self._client = client
        self._index = index
        self._streams = streams
        self._model = model
        self._fingerprint = fingerprint
        self._step_tokens = step_tokens
        self.on_progress: Callable[[Progress], None] | None = None
        self._warm: set[str] = set()
        self._stop = threading.Event()

    def stop(self) -> None:
        """Make `run` return after the request in flight."""
        self._stop.set()

    def run(self, items: Iterable[WarmItem]) -> Progress:
        """Warm `items` in order; what is stored already is not computed again. Raises EngineError."""
        known = {block.id for file in self._index.files() for block in self._index.blocks(file.path)}
        self._warm &= known
        self.progress.blocks = len(known)
        streams = [stream for item in items for stream in self._streams_of(item)]
        self.progress.queued_blocks = sum(len(stream.blocks) for stream in streams)
        self._tell("warming")
        for stream in streams:
            for piece in self._pieces(stream):
                if self._stop.is_set():
                    self._tell("stopped")
                    return self.progress
                self._client.precompute(self._model, stream.tokens[: piece[-1]].tolist(), piece)
                self._tell("warming")
            self._warm.update(stream.blocks)
            self.progress.queued_blocks -= len(stream.blocks)
        self._tell("idle")
        return self.progress

    def _streams_of(self, item: WarmItem) -> Iterator[Stream]:
        try:
            data, blocks = self._index.snapshot(item.path)
        except IndexError_:
            return  # edited or gone since it was indexed: the watcher will name it again
        if item.block is None:
            yield from self._streams.of_file(data, blocks)
            return
        for block in blocks:
            if block.id == item.block:
                stream = self._streams.alone(data, block)
                if stream is not None:
                    yield stream
                return

    def _pieces(self, stream: Stream) -> Iterator[list[int]]:
        """Cuts to store, growing: each piece computes at most a step's new tokens behind the one before."""
        infos = entries_of_stream(self._fingerprint, INDEX_DOMAIN, stream.tokens, stream.cuts)
        missing = self._client.missing([info.id for info in infos])
        cuts = list(stream.cuts)
        begun = cuts[0]
        pending = 0
        for number, info in enumerate(infos, start=1):
            if info.id not in missing:
                if not pending:
                    begun = cuts[number]
                    continue
            else:
                pending += info.num_tokens
            is_last = number == len(infos)
            if pending and (is_last or cuts[number + 1] - begun > self._step_tokens):
                yield cuts[: number + 1]
                self.progress.tokens_computed += pending
                begun, pending = cuts[number], 0

    def _tell(self, state: str) -> None:
        self.progress.state = state
        self.progress.warm_blocks = len(self._warm)
        if self.on_progress is not None:
            self.on_progress(self.progress)


def items_of_index(
    index: Index, min_alone_bytes: int = 128, only: Container[str] | None = None
) -> list[WarmItem]:
    """Everything in an index (or the paths in `only`): files by importance, each followed by its functions and
    methods on their own."""
    importance = index.importance()
    items: list[WarmItem] = []
    for record in sorted(index.files(), key=lambda file: (-importance.get(file.path, 0.0), file.path)):
        if only is not None and record.path not in only:
            continue
        items.append(WarmItem(record.path))
        items.extend(
            WarmItem(record.path, block.id)
            for block in index.blocks(record.path)
            if block.kind not in _NOT_ALONE and block.end_byte - block.start_byte >= min_alone_bytes
        )
    return items


def warmth_report(progresses: Iterable[Progress], roots: list[str]) -> dict[str, Any]:
    """Body of `PUT /agentcache/warm`: the indexes' progress together."""
    known = list(progresses)
    states = [progress.state for progress in known]
    return {
        "roots": roots,
        "blocks": sum(progress.blocks for progress in known),
        "warm_blocks": sum(progress.warm_blocks for progress in known),
        "queued_blocks": sum(progress.queued_blocks for progress in known),
        "tokens_computed": sum(progress.tokens_computed for progress in known),
        "state": "warming" if "warming" in states else "idle",
    }
