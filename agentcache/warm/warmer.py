"""Keeping repositories warm in one engine: their indexes, their watchers, and the service that does the work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack

from agentcache.context import Streams
from agentcache.errors import EngineError
from agentcache.indexer import ChangeRecord, Index, Watcher
from agentcache.warm.budget import Budget
from agentcache.warm.engine import RemoteEngine
from agentcache.warm.index_source import IndexSource
from agentcache.warm.job import Source, Urgency
from agentcache.warm.pace import Traffic
from agentcache.warm.progress import Progress
from agentcache.warm.queue import WarmItem
from agentcache.warm.service import WarmService
from agentcache.warm.shown import Answers
from agentcache.warm.weights import Weights


class Warmer:
    """Warms `indexes` in `engine`. `run`, `run_once` and `warm` belong to one thread; `stop` to any.

    budget_bytes: of entries to keep; None: most of the engine's disk tier
    on_progress: told a few times a second; on_status: told, in one line, what a watcher has to say
    Raises EngineError where the engine does not answer, from whatever talks to it.
    """

    def __init__(
        self,
        engine: RemoteEngine,
        indexes: Sequence[Index],
        streams: Streams,
        *,
        budget_bytes: int | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        on_status: Callable[[str], None] | None = None,
    ) -> None:
        self._engine = engine
        self._on_progress, self._on_status = on_progress, on_status
        limit = engine.default_budget if budget_bytes is None else budget_bytes
        self.service = WarmService(
            engine,
            [],
            Budget(limit, engine.token_bytes),
            on_progress=self._tell,
            on_traffic=self._look,
        )
        self._weights = Weights(engine.weigh)
        self.sources = [
            IndexSource(index, streams, engine.fingerprint, self._dead, self._weights.stored)
            for index in indexes
        ]
        for source in self.sources:
            self.service.add_source(source)
        self._answered = 0
        self._answers = Answers(self.sources)

    @property
    def progress(self) -> Progress:
        return self.service.progress

    def add_source(self, source: Source) -> None:
        """Work for this one, too."""
        self._answers.add(source)
        self.service.add_source(source)

    def run_once(self) -> Progress:
        """Warm everything that is indexed; return when nothing is left."""
        self._fill()
        return self.service.run_once()

    def run(self, is_back: Callable[[], bool] | None = None) -> None:
        """Warm everything and keep it warm while files change, until `stop`.

        is_back: called when the engine does not answer any more; waits until it does again and returns True, or returns
            False to give up. Without it an engine that is gone is an EngineError.
        """
        with ExitStack() as watching:
            for source in self.sources:
                watcher = Watcher(source.index, self._listener(source), on_status=self._on_status)
                watching.callback(watcher.stop)
                watcher.start()
            self._fill()
            gone = False
            while not self.service.stopping:
                try:
                    if gone:
                        self._answered = 0
                        self.service.ask_again()
                    gone = False
                    self.service.run()
                except EngineError:
                    gone = True
                    if is_back is None or not is_back():
                        raise

    def warm(self, index: Index, items: Iterable[WarmItem]) -> Progress:
        """Warm these now, in this order, and whatever waits before them."""
        source = next(source for source in self.sources if source.index is index)
        source.add(items, Urgency.TOUCHED)
        return self.service.run_once()

    def stop(self) -> None:
        """Make `run` return after the step in flight."""
        self.service.stop()

    def _fill(self) -> None:
        for source in self.sources:
            source.fill()
        self.service.wake()

    def _listener(self, source: IndexSource) -> Callable[[Sequence[ChangeRecord]], None]:
        def listen(changes: Sequence[ChangeRecord]) -> None:
            source.edited(changes)
            self.service.wake()

        return listen

    def _dead(self, entry_ids: list[str]) -> None:
        """Nothing wants these any more: they go first, from our account and from the store."""
        self.service.demote(entry_ids)
        self._weights.dead(entry_ids)

    def _look(self, _traffic: Traffic) -> None:
        """Agents' requests were answered: what did they use?"""
        self._answered, requests = self._engine.touched(self._answered)
        for source in self.sources:
            source.used(requests)

    def _tell(self, progress: Progress) -> None:
        self._weights.flush()
        progress.blocks = sum(source.num_blocks() for source in self.sources)
        progress.warm_blocks = sum(source.warm_blocks() for source in self.sources)
        progress.queued_blocks = sum(source.queued_blocks() for source in self.sources)
        progress.queue = {}
        for source in self.sources:
            for name, count in source.queue_counts().items():
                progress.queue[name] = progress.queue.get(name, 0) + count
        edits = [source.last_edit for source in self.sources if source.last_edit is not None]
        progress.last_edit = max(edits, key=lambda edit: edit.at, default=None)
        roots = [str(source.index.root) for source in self.sources]
        wants = self._engine.report({"roots": roots, **progress.to_dict()})
        if told := self._answers.to(wants):
            self._engine.tell(told)
        if self._on_progress is not None:
            self._on_progress(progress)
