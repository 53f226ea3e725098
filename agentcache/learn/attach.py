"""A warm worker that learns: the learner and the views as sources of its jobs, with the engine behind HTTP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from agentcache.context import Streams
from agentcache.engine_client import EngineClient
from agentcache.errors import EngineError
from agentcache.indexer import Index
from agentcache.learn.learner import Learner, canonical_by
from agentcache.learn.ledger import Ledger, ledger_path
from agentcache.learn.note import Note
from agentcache.learn.view_source import ViewSource
from agentcache.warm.budget import Budget
from agentcache.warm.engine import RemoteEngine

if TYPE_CHECKING:
    from agentcache.warm.warmer import Warmer

_VIEWS_SHARE = 0.5
"""Of the learned spans' budget: what entries of files in views may take besides."""


class _RemoteLearning:
    """Implements `agentcache.learn.learner.LearnEngine`."""

    def __init__(self, engine: RemoteEngine, client: EngineClient) -> None:
        self.fingerprint, self.token_bytes = engine.fingerprint, engine.token_bytes
        self._engine, self._client = engine, client

    def notes(self) -> tuple[list[Note], int]:
        return self._client.notes()

    def missing(self, entry_ids: Sequence[str]) -> set[str]:
        return self._engine.missing(entry_ids)

    def drop(self, entry_ids: Sequence[str]) -> bool:
        return self._engine.drop(entry_ids)

    def report_learned(self, learned: dict[str, Any]) -> None:
        self._client.report_learned(learned)


def learn_from_traffic(
    warmer: Warmer,
    engine: RemoteEngine,
    client: EngineClient,
    indexes: Sequence[Index],
    streams: Streams,
    budget_bytes: int,
    say: Callable[[str], None],
) -> None:
    """Have `warmer` learn, too; where the engine does not let us, it is said why, and nothing is learned.

    budget_bytes: of learned spans; files in views may take half as much besides
    Raises EngineError when the engine does not answer.
    """
    remote = _RemoteLearning(engine, client)
    try:
        remote.report_learned({"state": "idle", "budget_bytes": budget_bytes})
    except EngineError as error:
        if " 403 " not in f"{error} ":
            raise
        say(f"note: nothing is learned from traffic: {error}")
        return
    forget = warmer.service.budget.forget

    def drop(ids: list[str]) -> None:
        engine.drop(ids)
        forget(ids)

    budget = Budget(int(budget_bytes * _VIEWS_SHARE), engine.token_bytes)
    views = [ViewSource(index, streams, engine.fingerprint, budget, drop) for index in indexes]

    def notice(note: Note) -> None:
        for source in views:
            source.notice(note)
        learner.tell(views=sorted({view.name for source in views for view in source.views}))

    learner = Learner(
        remote,
        Ledger(ledger_path(engine.fingerprint), budget_bytes, engine.token_bytes),
        canonical_by(streams.decode, streams.encode),
        on_note=notice,
        on_drop=forget,
    )
    warmer.add_source(learner)
    for source in views:
        warmer.add_source(source)
