"""The warm worker's loop: what is most useful next, in small steps, whenever nobody else uses the engine."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from agentcache.entry import EntryInfo
from agentcache.warm.budget import Budget
from agentcache.warm.engine import WarmEngine
from agentcache.warm.job import Job, Source, Urgency
from agentcache.warm.pace import URGENT, Pace, Traffic
from agentcache.warm.progress import Progress
from agentcache.warm.steps import Step, next_step

_AT_ONCE = 8
"""Jobs that are asked for together, and requests of one step."""
_LOOK_S = 0.5
"""How often the traffic is looked at while there is nothing to do, or while agents are served."""
_TELL_S = 0.2
_TOGETHER_S = 0.05
"""Answers of one step of the engine come within this time of each other."""


@dataclass(slots=True, eq=False)
class _Begun:
    """A job that was taken. missing: of each of its entries, whether it is still to be computed"""

    job: Job
    source: Source
    entries: list[EntryInfo]
    missing: list[bool] = field(default_factory=list)
    reached: int = 0
    computed: int = 0

    @property
    def wanted(self) -> set[str]:
        return {info.id for info, missing in zip(self.entries, self.missing, strict=True) if missing}


@dataclass(slots=True, eq=False)
class _Go:
    """Steps of different jobs that were sent together, and what the engine will say that it computed for each."""

    batch: list[tuple[_Begun, Step]]
    answers: list[Future[int]]
    sent: float


def _over(go: _Go, wait_s: float) -> bool:
    """Whether everything of it is answered, or is so within `wait_s`."""
    return not wait(go.answers, wait_s).not_done


class WarmService:
    """Runs the jobs of its sources, the most urgent first, in the thread that calls `run` or `run_once`.

    budget: what may be kept; on_progress: told after every step and when the state changes
    on_traffic: told when agents' requests have been answered since the last time
    Raises EngineError from `run` and `run_once` when the engine does not answer. Nothing is lost then: whatever was
    stored is not missing when it is asked for again.
    """

    def __init__(
        self,
        engine: WarmEngine,
        sources: Iterable[Source],
        budget: Budget,
        *,
        on_progress: Callable[[Progress], None] | None = None,
        on_traffic: Callable[[Traffic], None] | None = None,
        max_step_tokens: int | None = None,
    ) -> None:
        self.progress = Progress(budget_bytes=budget.limit_bytes)
        self.pace = Pace()
        self.budget = budget
        self._engine = engine
        self._sources = list(sources)
        self._on_progress = on_progress
        self._on_traffic = on_traffic
        self._max_step_tokens = max_step_tokens
        self._begun: list[_Begun] = []
        self._flying: deque[_Go] = deque()
        self._landed = 0.0
        self._closed: Urgency | None = None  # jobs of this class and behind do not fit the budget any more
        self._may_drop = True
        self._requests_seen = 0
        self._told_at = 0.0
        self._wake = threading.Event()
        self._stopping = threading.Event()

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def add_source(self, source: Source) -> None:
        """Ask this one, too. Before `run`, or from the service's thread."""
        self._sources.append(source)

    def wake(self) -> None:
        """A source has something new. May be called from any thread."""
        self._wake.set()

    def stop(self) -> None:
        """Make `run` return after what is in flight. May be called from any thread."""
        self._stopping.set()
        self._wake.set()

    def ask_again(self) -> None:
        """The engine is another one: find out anew what is missing of the jobs that were begun."""
        self._abandon()
        for one in self._begun:
            one.reached = 0
        missing = self._engine.missing([info.id for one in self._begun for info in one.entries])
        for one in self._begun:
            one.missing = [info.id in missing for info in one.entries]
        self._requests_seen = 0
        self._finish()

    def demote(self, entry_ids: Iterable[str]) -> None:
        """Nothing wants these entries any more: they are the first to go when room is needed."""
        if self.budget.demote(entry_ids):
            self._closed = None

    def run_once(self) -> Progress:
        """Return when nothing is left to do."""
        while not self._stopping.is_set() and self._turn():
            pass
        self._settle()
        return self.progress

    def run(self) -> None:
        """Work, and wait for more, until `stop`."""
        while not self._stopping.is_set():
            if not self._turn():
                self._settle()
                self._wake.wait(_LOOK_S)
                self._wake.clear()
        self._settle()

    def _settle(self) -> None:
        self._land()
        state = "stopped" if self._stopping.is_set() else "full" if self._closed is not None else "idle"
        self._tell(state, force=state != self.progress.state)

    def _turn(self) -> bool:
        """One step, or one wait; False if there is nothing to do."""
        traffic = self._engine.traffic(0.0)
        self._notice(traffic)
        urgency = self._most_urgent()
        if urgency is None:
            return False
        if traffic.running:
            self._land()
            self._tell("waiting")
            self._engine.traffic(_LOOK_S)
            return True
        wait_s = self.pace.wait_s(traffic, urgency)
        if wait_s > 0:
            self._land()
            self._tell("waiting")
            self._wake.wait(min(wait_s, _LOOK_S))
            self._wake.clear()
            return True
        max_new = self.pace.step_tokens(traffic, urgency)
        if self._max_step_tokens is not None:
            max_new = min(max_new, self._max_step_tokens)
        batch = self._batch(max_new)
        if batch:
            self._send(batch)
        self._land(leave=self.pace.goes(traffic, urgency) - 1 if batch else len(self._flying) - 1)
        self._tell("warming")
        return True

    def _notice(self, traffic: Traffic) -> None:
        if traffic.requests != self._requests_seen and not traffic.running:
            self._requests_seen = traffic.requests
            if self._on_traffic is not None:
                self._on_traffic(traffic)

    # choosing

    def _most_urgent(self) -> Urgency | None:
        classes = [begun.job.urgency for begun in self._begun]
        classes += [urgency for source in self._sources if (urgency := self._open(source)) is not None]
        return min(classes, default=None)

    def _open(self, source: Source) -> Urgency | None:
        """Class of the source's best job, if it may fit the budget."""
        urgency = source.urgency()
        if urgency is None or (self._closed is not None and urgency >= self._closed):
            return None
        return urgency

    def _batch(self, max_new: int) -> list[tuple[_Begun, Step]]:
        """Steps of different jobs for one go of the engine, `max_new` new tokens together."""
        batch: list[tuple[_Begun, Step]] = []
        flying = [begun for go in self._flying for begun, _ in go.batch]
        taken = {id(begun) for begun in flying}
        computing = {entry for begun in flying for entry in begun.wanted}
        room = max_new
        while room > 0 and len(batch) < _AT_ONCE:
            # Nothing makes an edit wait: what is less urgent is not even looked at with it.
            least = URGENT if batch and batch[0][0].job.urgency <= URGENT else Urgency.REFRESH
            begun = self._next(taken, least)
            if begun is None or begun.wanted & computing:
                break  # what it shares with another one is computed once
            step = next_step(begun.job.cuts, begun.missing, begun.reached, room, self._engine.page_size)
            assert step is not None, "a job that is done is not in the list"
            if batch and step.stop not in begun.job.cuts:
                break  # by itself, in the next go
            batch.append((begun, step))
            taken.add(id(begun))
            computing |= begun.wanted
            room -= step.num_new
        return batch

    def _next(self, taken: set[int], least: Urgency) -> _Begun | None:
        """The most urgent job, at least of class `least`, that is not in `taken`; new ones are begun as needed."""
        while True:
            open_jobs = [one for one in self._begun if id(one) not in taken and one.job.urgency <= least]
            best = min(open_jobs, key=lambda begun: begun.job.urgency, default=None)
            offers = [
                (urgency, number)
                for number, source in enumerate(self._sources)
                if (urgency := self._open(source)) is not None and urgency <= least
            ]
            if not offers or (best is not None and best.job.urgency <= min(offers)[0]):
                return best
            urgency, number = min(offers)
            self._begin(self._sources[number], urgency)

    def _begin(self, source: Source, urgency: Urgency) -> None:
        """Take some jobs of one class, and ask what of them is missing."""
        begun: list[_Begun] = []
        while len(begun) < _AT_ONCE and source.urgency() == urgency:
            job = source.take()
            if job is None:
                break
            one = _Begun(job, source, job.entries(self._engine.fingerprint))
            if not self._hold(one):
                self.progress.refused += 1
                source.done(job, None)
                self._closed = urgency
                break
            begun.append(one)
        if not begun:
            return
        missing = self._engine.missing([info.id for one in begun for info in one.entries])
        for one in begun:
            one.missing = [info.id in missing for info in one.entries]
        self._begun += begun
        self._finish()

    def _hold(self, begun: _Begun) -> bool:
        """Enter its entries into the budget; what must go for them is deleted. False if there is no room."""
        entries = {info.id: info.num_tokens for info in begun.entries}
        victims = self.budget.hold(entries, int(begun.job.urgency), may_drop=self._may_drop)
        if victims:
            self._land()  # it may hold some of them
            self._may_drop = self._engine.drop(victims)
            for source in self._sources:
                source.lost(victims)
        return victims is not None

    # computing

    def _send(self, batch: list[tuple[_Begun, Step]]) -> None:
        pool = ThreadPoolExecutor(len(batch), thread_name_prefix="warm")
        answers = [pool.submit(self._precompute, begun.job, step) for begun, step in batch]
        pool.shutdown(wait=False)
        self._flying.append(_Go(batch, answers, time.monotonic()))

    def _precompute(self, job: Job, step: Step) -> int:
        return self._engine.precompute(job.tokens[: step.stop], step.cuts, job.domain, job.salt)

    def _land(self, leave: int = 0) -> None:
        """Wait for goes in flight, the oldest first, until only `leave` are left.

        The engine may have computed what is behind them in the same step: that counts with them, or the pace would
        take it to have taken no time.
        """
        tokens, began = 0, 0.0
        while self._flying and (len(self._flying) > leave or (began and _over(self._flying[0], _TOGETHER_S))):
            try:
                computed = [answer.result() for answer in self._flying[0].answers]
            except BaseException:
                self._abandon()
                raise
            go = self._flying.popleft()
            began = began or max(go.sent, self._landed)
            tokens += sum(computed)
            self._landed_one(go, computed)
        if began:
            self._landed = time.monotonic()
            self.pace.observe(tokens, self._landed - began)

    def _abandon(self) -> None:
        """Forget what is in flight, once it has ended: what was stored is not missing when it is asked for again."""
        wait([answer for go in self._flying for answer in go.answers])
        self._flying.clear()

    def _landed_one(self, go: _Go, computed: list[int]) -> None:
        self.progress.tokens_computed += sum(computed)
        stored: set[str] = set()
        for (begun, step), tokens in zip(go.batch, computed, strict=True):
            begun.computed += tokens
            begun.reached = step.stop
            ends = begun.job.cuts[1:]
            stored |= {
                info.id
                for info, end in zip(begun.entries, ends, strict=True)
                if end <= step.cuts[-1] <= step.stop
            }
        for begun in self._begun:
            begun.missing = [
                missing and info.id not in stored
                for info, missing in zip(begun.entries, begun.missing, strict=True)
            ]
        self._finish()

    def _finish(self) -> None:
        """Give back what has nothing missing any more."""
        for begun in [one for one in self._begun if not any(one.missing)]:
            self._begun.remove(begun)
            begun.source.done(begun.job, begun.computed)

    def _tell(self, state: str, force: bool = False) -> None:
        now = time.monotonic()
        if state == self.progress.state and not force and now - self._told_at < _TELL_S:
            return
        self._told_at = now
        self.progress.state = state
        self.progress.used_bytes = self.budget.used_bytes
        self.progress.tokens_per_s = round(self.pace.rate, 1)
        if self._on_progress is not None:
            self._on_progress(self.progress)
