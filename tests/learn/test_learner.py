"""What is learned from an engine's notes: what, in which order, for whom, and within its budget."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentcache.entry import Tokens, as_tokens, entries_of_stream, own_domain
from agentcache.learn.learner import Learner, canonical_by
from agentcache.learn.ledger import Ledger
from agentcache.learn.note import Note, NoteQueue
from agentcache.learn.runs import PIECE_TOKENS, cuts_of
from agentcache.warm.budget import Budget
from agentcache.warm.job import Domain, Urgency
from agentcache.warm.pace import Traffic
from agentcache.warm.service import WarmService

MODEL = "ab" * 32
TOKEN_BYTES = 100


def text(seed: int, size: int) -> Tokens:
    return as_tokens(np.random.default_rng(seed).integers(0, 40_000, size))


class Memory:
    """An engine that keeps entries as names: what the learner and the warm worker see of one."""

    def __init__(self) -> None:
        self.fingerprint, self.token_bytes, self.page_size = MODEL, TOKEN_BYTES, 16
        self.entries: dict[str, tuple[str, int]] = {}
        self.computed: list[tuple[str, list[int]]] = []
        self.told: dict[str, Any] = {}
        self.waiting: list[Note] = []
        self.noted = 0

    def note(self, salt: str = "", *, runs: Sequence[Tokens] = (), answer: Tokens | None = None, **used: int):
        self.waiting.append(Note(salt, tuple(runs), as_tokens([]) if answer is None else answer, used))
        self.noted += 1

    def notes(self) -> tuple[list[Note], int]:
        taken, self.waiting = self.waiting, []
        return taken, self.noted

    def missing(self, entry_ids: Sequence[str]) -> set[str]:
        return {id for id in entry_ids if id not in self.entries}

    def drop(self, entry_ids: Sequence[str]) -> bool:
        for id in entry_ids:
            self.entries.pop(id, None)
        return True

    def precompute(self, tokens: Tokens, cuts: Sequence[int], domain: Domain, salt: str) -> int:
        assert domain == "own", "traffic is for those who sent it"
        if cuts[-1] > len(tokens):
            return len(tokens)  # a step on the way to an entry's end
        stored = own_domain(salt)
        for info in entries_of_stream(MODEL, stored, tokens, cuts):
            if info.id not in self.entries:
                self.entries[info.id] = stored, info.num_tokens
                self.computed.append((salt, info.tokens.tolist()))
        return len(tokens)

    def traffic(self, wait_s: float) -> Traffic:
        return Traffic()

    def report(self, progress: Any) -> None: ...

    def report_learned(self, learned: dict[str, Any]) -> None:
        self.told = learned

    @property
    def bytes(self) -> int:
        return TOKEN_BYTES * sum(tokens for _, tokens in self.entries.values())


class World:
    """An engine, a learner and the warm worker that runs its jobs. `now` is both clocks."""

    def __init__(self, path: Path, budget_tokens: int = 10_000) -> None:
        self.engine, self.now = Memory(), 1000.0
        self.path = path
        self.restart(budget_tokens)

    def restart(self, budget_tokens: int) -> None:
        self.ledger = Ledger(self.path, budget_tokens * TOKEN_BYTES, TOKEN_BYTES, lambda: self.now)
        self.learner = Learner(self.engine, self.ledger, lambda answer: answer, clock=lambda: self.now)
        self.service = WarmService(self.engine, [self.learner], Budget(1 << 40, TOKEN_BYTES))

    def work(self) -> None:
        self.now += 1.0
        self.service.run_once()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "learned" / "x.db")


def test_each_piece_of_text_is_computed_once(world: World) -> None:
    head, first, second = text(1, 300), text(2, 120), text(3, 90)
    world.engine.note(runs=[np.concatenate([head, first])])
    world.engine.note(runs=[np.concatenate([head, second])])  # before the first was computed
    world.work()
    assert sum(len(tokens) for _, tokens in world.engine.computed) == 300 + 120 + 90
    world.engine.note(runs=[head, first])  # noted before they existed, asked for afterwards
    world.work()
    assert sum(len(tokens) for _, tokens in world.engine.computed) == 300 + 120 + 90
    assert world.engine.told["spans"] == len(world.engine.entries)
    assert world.engine.told["tokens"] * TOKEN_BYTES == world.engine.told["bytes"] == world.engine.bytes
    assert world.engine.told["handled"] == 3
    assert world.engine.told["state"] == "idle"


def test_answers_first_then_what_came_again_then_the_rest(world: World) -> None:
    returned, once, answer = text(1, 200), text(2, 200), text(3, 40)
    world.engine.note(runs=[returned])
    world.engine.note(runs=[once])
    world.engine.note(runs=[np.concatenate([text(4, 8), returned[20:120]])])
    world.engine.note(answer=answer)
    assert world.learner.urgency() is Urgency.LEARNED
    jobs = [job for _ in range(3) if (job := world.learner.take())]
    assert [job.tokens.tolist() for job in jobs] == [x.tolist() for x in (answer, returned, once)]
    assert [job.urgency for job in jobs] == [Urgency.LEARNED, Urgency.LEARNED, Urgency.TOUCHED]
    assert not any("<" in job.label or str(text(1, 1)[0]) in job.label for job in jobs)


def test_a_salts_text_is_its_own(world: World) -> None:
    secret = text(1, 200)
    world.engine.note("tenant", runs=[secret])
    world.engine.note("", runs=[secret])  # somebody else sends the same: it is computed for them, too
    world.work()
    assert sorted(world.engine.computed) == [("", secret.tolist()), ("tenant", secret.tolist())]
    assert {domain for domain, _ in world.engine.entries.values()} == {own_domain(""), own_domain("tenant")}


def test_what_does_not_return_goes_first(world: World) -> None:
    world.restart(1000)
    texts = [text(seed, 250) for seed in range(6)]
    for number, one in enumerate(texts[:4]):
        world.engine.note(runs=[one])
        world.work()
        ids = list(world.engine.entries)
        if number >= 1:
            world.engine.note(**{ids[0]: 250})  # the first keeps coming back
    assert world.engine.bytes == 1000 * TOKEN_BYTES
    kept = next(iter(world.engine.entries))
    world.engine.note(runs=[texts[4]])
    world.work()
    world.engine.note(runs=[texts[5]])
    world.work()
    assert kept in world.engine.entries
    assert world.engine.bytes <= 1000 * TOKEN_BYTES
    assert world.engine.told["evicted"] == 2
    assert world.engine.told["hits"] == 3
    assert world.engine.told["hit_tokens"] == 750


def test_it_outlives_a_restart_and_a_smaller_budget(world: World) -> None:
    for seed in range(3):
        world.engine.note(runs=[text(seed, 200)])
        world.work()
    lost = next(iter(world.engine.entries))
    del world.engine.entries[lost]
    before = dict(world.engine.entries)
    world.ledger.close()
    world.restart(10_000)
    assert {info.id for info in world.ledger.infos()} == set(before)
    world.engine.note(runs=[text(2, 200)])
    world.work()
    assert world.engine.entries == before, "known after the restart"
    world.ledger.close()
    world.restart(250)
    assert len(world.engine.entries) == 1
    assert (world.path.stat().st_mode & 0o777, world.path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_a_damaged_file_is_begun_anew(world: World) -> None:
    world.engine.note(runs=[text(1, 200)])
    world.work()
    world.ledger.close()
    for path in world.path.parent.iterdir():
        path.unlink()
    world.path.write_bytes(b"no database" * 100)
    world.restart(10_000)
    assert len(world.ledger) == 0
    world.engine.note(runs=[text(1, 200)])
    world.work()
    assert len(world.ledger) == 1


def test_what_the_store_has_evicted_is_learned_again(world: World) -> None:
    world.engine.note(runs=[text(1, 200)])
    world.work()
    world.engine.entries.clear()
    world.engine.note(runs=[text(1, 200)])
    world.work()
    assert len(world.engine.entries) == 1
    assert world.engine.told["spans"] == 1


def test_larger_than_the_budget(world: World) -> None:
    world.restart(100)
    world.engine.note(runs=[text(1, 200), text(2, 60)])
    world.work()
    assert [len(tokens) for _, tokens in world.engine.computed] == [60]
    assert world.engine.told["handled"] == 1


def test_long_text_becomes_several_entries_behind_each_other(world: World) -> None:
    world.engine.note(runs=[text(1, 3 * PIECE_TOKENS + 1)])
    world.work()
    assert len(world.engine.entries) == 4
    assert cuts_of(3 * PIECE_TOKENS) == (0, PIECE_TOKENS, 2 * PIECE_TOKENS, 3 * PIECE_TOKENS)


def test_an_answer_is_learned_as_its_text_comes_back() -> None:
    words = {1: "hel", 2: "lo", 3: "hello", 4: ""}
    canonical = canonical_by(
        lambda ids: "".join(words[one] for one in ids), lambda said: [3] * (len(said) // 5)
    )
    assert canonical(as_tokens([1, 2] * 20 + [4])).tolist() == [3] * 20
    assert not len(canonical(as_tokens([1, 2] * 3))), "too short to be found"
    assert not len(canonical(as_tokens([])))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(16, 400), st.integers(0, 5)), max_size=12))
def test_the_budget_holds_whatever_comes(
    tmp_path_factory: pytest.TempPathFactory, traffic: list[tuple[int, int, int]]
) -> None:
    world = World(tmp_path_factory.mktemp("learned") / "x.db", 700)
    for seed, size, used in traffic:
        ids = list(world.engine.entries)
        world.engine.note(
            runs=[text(seed, size)], answer=text(seed + 10, size // 2), **dict.fromkeys(ids[:used], 9)
        )
        world.work()
        assert world.engine.bytes <= 700 * TOKEN_BYTES
        assert {info.id for info in world.ledger.infos()} == set(world.engine.entries)
        assert world.engine.told["handled"] == world.engine.noted
    world.ledger.close()


def test_the_queue_holds_so_many_bytes() -> None:
    queue = NoteQueue(max_bytes=1000)
    for seed in range(10):
        queue.add(Note("", (text(seed, 100),)))  # 400 bytes
    taken, added = queue.take()
    assert [note.runs[0].tolist() for note in taken] == [text(8, 100).tolist(), text(9, 100).tolist()]
    assert (added, queue.num_dropped) == (10, 8)
    assert queue.take() == ([], 10)


def test_a_note_travels_as_json() -> None:
    import json

    note = Note("salt", (text(1, 20), text(2, 30)), text(3, 16), {"id": 7})
    back = Note.from_dict(json.loads(json.dumps(note.to_dict())))
    assert back.to_dict() == note.to_dict()
    assert back.nbytes == note.nbytes == 4 * 66 + 64
