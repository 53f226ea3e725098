"""The service on an engine that only counts: order, yielding, budget, stopping and going on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from threading import Barrier, Lock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentcache.entry import Tokens
from agentcache.errors import EngineError
from agentcache.warm.budget import Budget
from agentcache.warm.job import Domain, Job, Urgency
from agentcache.warm.pace import Traffic
from agentcache.warm.service import WarmService
from tests.warm.fake import FINGERPRINT, FakeEngine, ListSource, job

PLENTY = Budget(1 << 40, 10).limit_bytes


def service(engine: FakeEngine, *sources: ListSource, limit: int = PLENTY, step: int = 32) -> WarmService:
    return WarmService(engine, sources, Budget(limit, engine.token_bytes), max_step_tokens=step)


CLASSES = [Urgency.EDIT, Urgency.TOUCHED, Urgency.IMPORTANT]
files = st.lists(st.lists(st.integers(1, 300), min_size=1, max_size=6, unique=True).map(sorted), max_size=4)
"""Cuts of each file: a job is one of them from its beginning to one of its cuts."""


@settings(max_examples=60, deadline=None)
@given(files, st.data(), st.integers(8, 64))
def test_everything_is_stored_and_no_token_is_computed_twice(
    drawn: list[list[int]], data: st.DataObject, step: int
) -> None:
    jobs = []
    for seed, cuts in enumerate(drawn):
        for upto in data.draw(st.lists(st.integers(1, len(cuts)), max_size=3)):
            jobs.append(job(str(len(jobs)), seed, (0, *cuts[:upto]), data.draw(st.sampled_from(CLASSES))))
    engine, source = FakeEngine(), ListSource(jobs)
    progress = service(engine, source, step=step).run_once()
    assert engine.stored.keys() == {info.id for one in jobs for info in one.entries(FINGERPRINT)}
    different = {one.tokens[: n + 1].tobytes() for one in jobs for n in range(len(one.tokens))}
    assert sum(engine.computed) == len(different)
    assert (
        progress.tokens_computed == sum(engine.computed) == sum(tokens or 0 for _, tokens in source.finished)
    )
    assert progress.state == "idle"


def test_the_most_urgent_goes_first_and_what_was_begun_goes_on_behind_it() -> None:
    engine = FakeEngine()
    slow = ListSource([job("slow", 1, (0, 30, 60, 90), Urgency.IMPORTANT)])
    quick = ListSource([])

    def edit_arrives() -> None:
        if len(engine.calls) == 1:
            quick.jobs.append(job("quick", 2, (0, 10), Urgency.EDIT))

    engine.before_step = edit_arrives
    service(engine, slow, quick).run_once()
    first = [int(tokens[0]) for tokens, _ in engine.calls]
    a, b = (int(job("", seed, (0, 1)).tokens[0]) for seed in (1, 2))
    assert first[0] == a
    assert b in first[2:4], "right after the step that was in flight"
    assert sum(engine.computed) == 100


def test_small_jobs_share_a_step() -> None:
    engine = FakeEngine()
    source = ListSource([job(str(n), n, (0, 8)) for n in range(12)])
    running = service(engine, source, step=32)
    seen: list[int] = []
    running._send, inner = (lambda batch: (seen.append(len(batch)), inner(batch))), running._send  # type: ignore[method-assign]
    running.run_once()
    assert seen == [4, 4, 4]


def test_two_goes_are_in_flight_while_nobody_else_is_about_and_one_otherwise() -> None:
    def most(now: Traffic, urgency: Urgency) -> int:
        engine, count, lock, seen = FakeEngine(), 0, Lock(), [0]
        engine.now = now
        source = ListSource([job(str(n), n, (0, 32), urgency) for n in range(6)])
        inner = engine.precompute

        def precompute(tokens: Tokens, cuts: Sequence[int], domain: Domain, salt: str) -> int:
            nonlocal count
            with lock:
                count += 1
                seen.append(count)
            time.sleep(0.02)
            with lock:
                count -= 1
                return inner(tokens, cuts, domain, salt)

        engine.precompute = precompute  # type: ignore[method-assign]
        service(engine, source, step=32).run_once()
        assert len(source.finished) == 6
        return max(seen)

    shared = Traffic(requests=3, idle_s=20.0)
    assert most(Traffic(), Urgency.IMPORTANT) == 2
    assert most(Traffic(), Urgency.EDIT) == 1
    assert most(Traffic(), Urgency.REFRESH) == 1
    assert most(shared, Urgency.IMPORTANT) == 1


def test_goes_that_the_engine_computes_in_one_step_are_timed_as_one() -> None:
    engine, together, lock = FakeEngine(), Barrier(2), Lock()
    inner = engine.precompute

    def precompute(tokens: Tokens, cuts: Sequence[int], domain: Domain, salt: str) -> int:
        together.wait(10)
        time.sleep(0.1)
        with lock:
            return inner(tokens, cuts, domain, salt)

    engine.precompute = precompute  # type: ignore[method-assign]
    running = service(engine, ListSource([job(str(n), n, (0, 64)) for n in range(6)]), step=64)
    running.run_once()
    assert 100 < running.pace.rate < 2 * 64 / 0.1


def test_a_go_that_fails_leaves_nothing_in_flight() -> None:
    engine = FakeEngine()
    engine.dies_after = 1
    source = ListSource([job(str(n), n, (0, 32)) for n in range(6)])
    running = service(engine, source, step=32)
    with pytest.raises(EngineError):
        running.run_once()
    calls = len(engine.calls)
    engine.dies_after = None
    running.ask_again()
    running.run_once()
    assert sum(engine.computed) == 6 * 32
    assert calls == 1


def test_nothing_is_computed_while_agents_are_served() -> None:
    engine, source = FakeEngine(), ListSource([job("a", 1, (0, 10))])
    engine.now = Traffic(running=1, requests=0, idle_s=0.0)
    running = service(engine, source)
    for _ in range(3):
        assert running._turn()
    assert not engine.calls
    assert running.progress.state == "waiting"
    engine.now = Traffic(running=0, requests=1, idle_s=100.0)
    running.run_once()
    assert len(engine.calls) == 1


def test_in_an_agents_usual_pause_only_edits_are_computed() -> None:
    engine = FakeEngine()
    engine.now = Traffic(running=0, requests=9, idle_s=0.1, pauses_s=(1.0,) * 8)
    source = ListSource([job("edit", 1, (0, 10), Urgency.EDIT), job("other", 2, (0, 10))])
    running = service(engine, source)
    running._turn()
    assert [label for label, _ in source.finished] == ["edit"]
    running._turn()
    assert len(source.finished) == 1
    engine.now = Traffic(running=0, requests=9, idle_s=1.2, pauses_s=(1.0,) * 8)
    running.run_once()
    assert len(source.finished) == 2


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 6), st.integers(8, 64))
def test_after_an_engine_that_died_only_the_rest_is_computed(dies_after: int, step: int) -> None:
    jobs = [job(str(n), n, (0, 20, 35, 50)) for n in range(3)]
    engine = FakeEngine()
    engine.dies_after = dies_after
    with suppress(EngineError):
        service(engine, ListSource(jobs), step=step).run_once()
    before, held = sum(engine.computed), sum(engine.stored.values())
    engine.dies_after = None
    service(engine, ListSource(jobs), step=step).run_once()
    assert sum(engine.computed) == 150
    assert before >= held


@given(st.integers(0, 400), st.lists(st.sampled_from(list(Urgency)), min_size=1, max_size=8))
@settings(max_examples=60, deadline=None)
def test_the_budget_is_respected_at_every_moment(limit: int, classes: list[Urgency]) -> None:
    engine = FakeEngine()
    jobs = [job(str(n), n, (0, 7, 20), urgency) for n, urgency in enumerate(classes)]
    engine.before_step = lambda: check()

    def check() -> None:
        assert sum(engine.stored.values()) * engine.token_bytes <= limit

    source = ListSource(jobs)
    running = service(engine, source, limit=limit)
    running.run_once()
    check()
    fits = limit // engine.token_bytes // 20
    assert sum(tokens is not None for _, tokens in source.finished) >= min(fits, len(jobs))
    assert running.progress.state == ("idle" if fits >= len(jobs) else "full")


def test_an_urgent_job_takes_the_room_of_the_least_urgent() -> None:
    engine = FakeEngine()
    source = ListSource([job("a", 1, (0, 20), Urgency.IMPORTANT), job("b", 2, (0, 20), Urgency.ALONE)])
    running = service(engine, source, limit=400)
    running.run_once()
    source.jobs.append(job("edit", 3, (0, 20), Urgency.EDIT))
    running.run_once()
    (b,) = (info.id for info in job("b", 2, (0, 20)).entries(FINGERPRINT))
    assert engine.dropped == source.gone == [b]
    assert len(engine.stored) == 2


def test_stopping_ends_it_after_the_step_in_flight() -> None:
    engine = FakeEngine()
    running = service(engine, ListSource([job("a", 1, (0, 30, 60, 90))]))
    engine.before_step = running.stop
    assert running.run_once().state == "stopped"
    assert len(engine.calls) == 1


def test_a_private_job_has_entries_of_its_own() -> None:
    tokens = np.arange(10, dtype=np.int32)
    public, private = (
        Job(tokens, (0, 10), Urgency.LEARNED, domain, salt).entries(FINGERPRINT)[0]
        for domain, salt in (("index", ""), ("own", "alice"))
    )
    assert public.id != private.id
    assert private.salt == "salt:alice"
    with pytest.raises(AssertionError):
        Job(tokens, (0, 11), Urgency.LEARNED)


def test_a_job_that_was_begun_is_asked_for_again_when_the_engine_is_another_one() -> None:
    engine = FakeEngine()
    engine.dies_after = 2
    source = ListSource([job("a", 1, (0, 30, 60, 90))])
    running = service(engine, source)
    with pytest.raises(EngineError):
        running.run_once()
    engine.dies_after = None
    engine._pages.clear()
    running.ask_again()
    running.run_once()
    assert sum(engine.computed) == 90, "what was stored is not computed again"
    assert source.finished == [("a", 90)]
