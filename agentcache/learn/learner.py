"""The learner: a source of jobs for the warm worker, made of what the engine noted.

    note ─▶ what of it is new (matched against all that is learned or queued) ─▶ queue ─▶ job ─▶ ledger

Answers go first: they are computed before they can come back. Then text that came again before it was computed. Text
that was seen once comes behind them, in the class of touched files, and never holds up an agent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Protocol

from agentcache.entry import EntryInfo, Tokens, as_tokens, entries_of_stream, own_domain
from agentcache.learn.ledger import Ledger
from agentcache.learn.note import Note
from agentcache.learn.runs import MIN_TOKENS, cuts_of, mask_of, runs_to_learn, stride_of
from agentcache.match import Matcher
from agentcache.plan.types import Span
from agentcache.warm.job import Job, Urgency

_ASK_S = 0.5
"""How often the engine is asked for notes: it counts as idle work, a millisecond each."""


class LearnEngine(Protocol):
    """What the learner asks of an engine. Every method raises EngineError when it does not answer.

    fingerprint: the model's; token_bytes: of a token's K/V
    """

    fingerprint: str
    token_bytes: int

    def notes(self) -> tuple[list[Note], int]: ...

    def missing(self, entry_ids: Sequence[str]) -> set[str]: ...

    def drop(self, entry_ids: Sequence[str]) -> bool: ...

    def report_learned(self, learned: dict[str, Any]) -> None: ...


class Kind(IntEnum):
    """What a queued span is; smaller ones go first."""

    ANSWER = 0
    RETURNED = 1
    FIRST = 2


_URGENCY = {Kind.ANSWER: Urgency.LEARNED, Kind.RETURNED: Urgency.LEARNED, Kind.FIRST: Urgency.TOUCHED}


@dataclass(slots=True, eq=False)
class _Queued:
    """A span that is to be computed by itself. number: of those queued so far, later is larger"""

    salt: str
    tokens: Tokens
    kind: Kind
    number: int
    infos: list[EntryInfo]

    @property
    def order(self) -> tuple[int, int]:
        return self.kind, -self.number


@dataclass(slots=True)
class Counts:
    """hits: requests that reused learned entries; hit_tokens: of them
    computed: tokens, by the engine; refused: spans there was no room for
    """

    hits: int = 0
    hit_tokens: int = 0
    refused: int = 0
    computed: int = 0


@dataclass(slots=True)
class Learner:
    """Implements `agentcache.warm.job.Source`. All methods are called from one thread.

    canonical: a generated answer's tokens as its text has them when it comes back, () where it has none
    on_note: told every note, after what of it is new was queued
    on_drop: told entries that were deleted to stay within the budget
    """

    engine: LearnEngine
    ledger: Ledger
    canonical: Callable[[Tokens], Tokens]
    on_note: Callable[[Note], None] = lambda note: None
    on_drop: Callable[[list[str]], None] = lambda ids: None
    clock: Callable[[], float] = time.monotonic
    counts: Counts = field(default_factory=Counts)
    _queue: list[_Queued] = field(default_factory=list)
    _of_entry: dict[str, _Queued] = field(default_factory=dict)
    _computing: dict[int, _Queued] = field(default_factory=dict)
    _matcher: Matcher = field(default_factory=Matcher)
    _num_queued: int = 0
    _noted: int = 0
    _handled: int = 0
    _ask_at: float = float("-inf")
    _told: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = list(self.ledger.infos())
        self.ledger.forget(self.engine.missing([info.id for info in known]))
        victims = self.ledger.shrink()
        if victims:
            self.engine.drop(victims)
        for info in self.ledger.infos():
            self._matcher.add(info, stride_of(info))

    # the warm worker's side

    def urgency(self) -> Urgency | None:
        """Asks the engine for notes now and then."""
        if self.clock() >= self._ask_at:
            notes, noted = self.engine.notes()
            self._ask_at = self.clock() + _ASK_S
            for note in notes:
                self._learn(note)
            if noted < self._noted:
                self._told = {}  # an engine that was started again, and knows nothing
            self._noted = noted
            self.tell()
        best = min(self._queue, key=lambda one: one.order, default=None)
        return None if best is None else _URGENCY[best.kind]

    def take(self) -> Job | None:
        computing = {info.id for one in self._computing.values() for info in one.infos}
        while self._queue:
            best = min(self._queue, key=lambda one: one.order)
            self._queue.remove(best)
            victims = self.ledger.hold(best.infos, computing)
            if victims is not None:
                self._drop(victims)
                return self._job(best)
            self._forget(best)
        return None

    def _job(self, best: _Queued) -> Job:
        label = f"{'an answer' if best.kind is Kind.ANSWER else 'prompt text'}, {len(best.tokens)} tokens"
        job = Job(best.tokens, cuts_of(len(best.tokens)), _URGENCY[best.kind], "own", best.salt, label)
        self._computing[id(job)] = best
        return job

    def done(self, job: Job, tokens_computed: int | None) -> None:
        """None: it was refused for want of budget."""
        queued = self._computing.pop(id(job))
        for info in queued.infos:
            self._of_entry.pop(info.id, None)
        if tokens_computed is None:
            self.lost([info.id for info in queued.infos])
        else:
            self.counts.computed += tokens_computed
        self.tell()

    def lost(self, entry_ids: Sequence[str]) -> None:
        """Entries are gone: their text is new when it comes again."""
        known = [id for id in entry_ids if id in self.ledger]
        self.ledger.forget(known)
        for id in known:
            self._matcher.remove(id)

    # what is new

    def _learn(self, note: Note) -> None:
        used = {id: tokens for id, tokens in note.used.items() if id in self.ledger}
        if self.ledger.used(used):
            self.counts.hits += 1
            self.counts.hit_tokens += sum(used.values())
        for run in note.runs:
            self._add(note.salt, run, Kind.FIRST)
        answer = self.canonical(note.answer)
        if len(answer):
            self._add(note.salt, answer, Kind.ANSWER)
        self.on_note(note)

    def _add(self, salt: str, tokens: Tokens, kind: Kind) -> None:
        """Queue what of `tokens` is neither learned nor queued, and hurry what is queued and came again."""
        spans = self._matcher.match(tokens, salts=(own_domain(salt),))
        held = [span.entry for span in spans if span.entry not in self._of_entry]
        if held and (gone := self.engine.missing(held)):
            self.lost(list(gone))  # the engine's store has evicted them
            spans = self._matcher.match(tokens, salts=(own_domain(salt),))
        self._hurry(spans)
        known = mask_of(len(tokens), ((span.start, span.stop) for span in spans))
        for start, stop in runs_to_learn(known):
            self._queue_span(salt, tokens[start:stop].copy(), kind)

    def _hurry(self, spans: Sequence[Span]) -> None:
        for span in spans:
            queued = self._of_entry.get(span.entry)
            if queued is not None and span.length >= MIN_TOKENS:
                queued.kind = min(queued.kind, Kind.RETURNED)

    def _queue_span(self, salt: str, tokens: Tokens, kind: Kind) -> None:
        if not self.ledger.fits(len(tokens)):
            self.counts.refused += 1
            return
        infos = entries_of_stream(self.engine.fingerprint, own_domain(salt), tokens, cuts_of(len(tokens)))
        self._num_queued += 1
        queued = _Queued(salt, tokens, kind, self._num_queued, infos)
        self._queue.append(queued)
        for info in infos:
            self._of_entry[info.id] = queued
            self._matcher.add(info, stride_of(info))
        self._keep_within_budget()

    def _keep_within_budget(self) -> None:
        """What is queued must fit the budget, too: what is worth least is forgotten."""
        tokens = sum(len(one.tokens) for one in self._queue)
        for one in sorted(self._queue, key=lambda one: one.order, reverse=True):
            if self.ledger.fits(tokens):
                return
            tokens -= len(one.tokens)
            self._queue.remove(one)
            self._forget(one)

    def _forget(self, queued: _Queued) -> None:
        """It will not be computed: it is new when it comes again."""
        self.counts.refused += 1
        for info in queued.infos:
            self._of_entry.pop(info.id, None)
            if info.id not in self.ledger:
                self._matcher.remove(info.id)

    def _drop(self, ids: list[str]) -> None:
        if ids:
            self.engine.drop(ids)
            self.on_drop(ids)
        for id in ids:
            self._matcher.remove(id)

    # what is shown

    def names(self, entry_ids: Iterable[str]) -> dict[str, dict[str, Any]]:
        """What its entries are called in the request log (`agentcache.warm.shown.NamesEntries`)."""
        return {id: {"learned": "learned text"} for id in entry_ids if id in self.ledger}

    def state(self) -> dict[str, Any]:
        """Body of `PUT /agentcache/learned`, but its views."""
        queued = len(self._queue) + len(self._computing)
        if not queued:
            self._handled = self._noted
        self._handled = min(self._handled, self._noted)
        ledger = self.ledger
        return {
            "state": "learning" if queued else "idle",
            "spans": len(ledger),
            "tokens": ledger.num_tokens,
            "bytes": ledger.num_bytes,
            "budget_bytes": ledger.budget_bytes,
            "hits": self.counts.hits,
            "hit_tokens": self.counts.hit_tokens,
            "tokens_computed": self.counts.computed,
            "queued": queued,
            "evicted": ledger.num_evicted,
            "handled": self._handled,
        }

    def tell(self, **more: Any) -> None:
        """Show it in the engine's status, if it is news."""
        state = {**self._told, **self.state(), **more}
        if state != self._told:
            self._told = state
            self.engine.report_learned(state)


def canonical_by(
    decode: Callable[[list[int]], str], encode: Callable[[str], list[int]]
) -> Callable[[Tokens], Tokens]:
    """A generated answer comes back as text, which may be other tokens than those it was generated as."""

    def canonical(answer: Tokens) -> Tokens:
        tokens = as_tokens(encode(decode(answer.tolist()))) if len(answer) else answer
        return tokens if len(tokens) >= MIN_TOKENS else as_tokens([])

    return canonical
