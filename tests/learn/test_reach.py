"""Waiting for a slow tier: only where that beats computing, for so long at most, and never in others' way."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentcache.entry import EntryInfo
from agentcache.plan.types import Span
from agentcache.plugin.reach import LATE, SLOWER, WAITED, Fetch, PrefillRate, Reach
from agentcache.store import EntryStore
from tests.store import servers
from tests.store.conftest import LAYOUT, MODEL, bits, make_entry
from tests.store.servers import Slow

TOKENS = 400
"""Of an entry: 154 KB in the layout of the store's tests."""
NUM = 3


@pytest.fixture(scope="module", params=["redis", "s3"])
def line(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slow]:
    """A real server with entries of another machine in it, behind a line whose speed tests set."""
    folder = tmp_path_factory.mktemp("remote")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_ACCESS_KEY_ID", "test")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "test")
        serve = servers.redis(folder) if request.param == "redis" else servers.s3()
        with serve as server:
            store = EntryStore.open(folder / "one", MODEL, LAYOUT, 1 << 24, 1 << 26, remote_url=server.url)
            for seed in range(NUM):
                store.put(*make_entry(seed, TOKENS))
            assert store.flush(30)
            store.close()
            with servers.slowed(server, 1e9) as slow:
                yield slow


class Second:
    """The second machine: its store, its engine's rate, and what it decides."""

    def __init__(self, root: Path, url: str) -> None:
        self.store = EntryStore.open(root, MODEL, LAYOUT, 1 << 24, 1 << 26, remote_url=url)
        assert self.store._remote is not None
        self.remote = self.store._remote
        self.infos: list[EntryInfo] = list(self.remote.infos())
        self.rate = PrefillRate()
        self.reach = Reach(self.store, self.rate)
        self.spans = [
            Span(1000 * i, info.num_tokens, info.id, 0, 0, False, False) for i, info in enumerate(self.infos)
        ]

    def engine_prefills(self, tokens_per_s: float) -> None:
        self.rate._rate = tokens_per_s

    def wait(self, fetch: Fetch) -> None:
        while self.reach.waits(fetch):
            time.sleep(0.005)


@pytest.fixture
def second(line: Slow, tmp_path: Path) -> Iterator[Second]:
    line.bytes_per_s = 1e9
    made = Second(tmp_path / "two", line.url)
    assert len(made.infos) == NUM
    yield made
    made.store.close()


def test_what_is_here_is_not_waited_for(second: Second) -> None:
    for info in second.infos:
        second.store.read(info.id)
    assert second.store.flush(30)
    assert second.reach.within(second.spans, waited=False) == second.spans
    assert second.reach.take_reasons() == {}


def test_waits_for_a_tier_that_beats_computing(second: Second) -> None:
    second.engine_prefills(100)  # 12 s for all
    fetch = second.reach.within(second.spans, waited=False)
    assert isinstance(fetch, Fetch)
    assert set(fetch.entries) == {info.id for info in second.infos}
    second.wait(fetch)
    assert second.reach.within(second.spans, waited=True) == second.spans
    assert second.reach.take_reasons() == {WAITED: 1}
    assert second.store.stats().tiers["remote"].hits == NUM
    for info in second.infos:
        seed = next(seed for seed in range(NUM) if make_entry(seed, TOKENS)[0].id == info.id)
        assert bits(second.store.read(info.id)) == bits(make_entry(seed, TOKENS)[1])


def test_computes_where_that_is_faster(second: Second, line: Slow) -> None:
    second.engine_prefills(1e9)
    here = second.infos[0]
    second.store.read(here.id)
    assert second.store.flush(30)
    assert second.reach.within(second.spans, waited=False) == [s for s in second.spans if s.entry == here.id]
    assert second.reach.take_reasons() == {SLOWER: 1}
    deadline = time.monotonic() + 30  # the next request finds them here
    while second.store.far([info.id for info in second.infos]) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert second.reach.within(second.spans, waited=False) == second.spans


def test_waits_no_longer_than_it_was_worth(second: Second, line: Slow) -> None:
    second.engine_prefills(2000)  # 0.6 s for all; the line is believed to be fast, and has become thin
    line.bytes_per_s = 20e3
    fetch = second.reach.within(second.spans, waited=False)
    assert isinstance(fetch, Fetch)
    patience = fetch.until - time.monotonic()
    assert patience <= 0.6
    second.wait(fetch)
    assert second.store.far(fetch.entries), "it gave up, they are still on their way"
    assert second.reach.within(second.spans, waited=True) == []
    assert second.reach.take_reasons() == {LATE: 1}
    line.bytes_per_s = 1e9


def test_a_benched_tier_is_not_waited_for(second: Second) -> None:
    second.engine_prefills(1)
    fetch = Fetch(tuple(info.id for info in second.infos), time.monotonic() + 60)
    assert second.reach.waits(fetch)
    second.remote.bench.failed()
    assert not second.reach.waits(fetch)
    assert second.reach.within(second.spans, waited=False) == []
    assert second.reach.take_reasons() == {SLOWER: 1}
    assert second.store.stats().tiers["remote"].hits == 0


def test_a_read_never_stands_behind_prefetches(second: Second, line: Slow) -> None:
    mine = make_entry(99, TOKENS)
    second.store.put(*mine)
    assert second.store._writer.flush(30)
    second.store._ram.remove(mine[0].id)
    line.bytes_per_s = 50e3  # three seconds an entry
    second.store.prefetch([info.id for info in second.infos])
    assert bits(second.store.read(mine[0].id)) == bits(mine[1])
    assert len(second.store.far([info.id for info in second.infos])) == NUM, "they are still on their way"
    line.bytes_per_s = 1e9


def test_the_engines_rate_is_that_of_pure_prefill() -> None:
    now = 0.0
    rate = PrefillRate(lambda: now)
    assert rate.tokens_per_s == 1000
    for begun in (1000, 1000):  # scheduled ahead: computed one after the other
        rate.began(begun)
    now = 2.0
    rate.ended()
    assert rate.tokens_per_s == 500
    now = 4.0
    rate.ended()
    assert rate.tokens_per_s == 500
    now = 100.0
    for tokens, seconds in ((1, 1.0), (0, 9.0)):  # decoding, and a step that loaded entries
        rate.began(tokens)
        now += seconds
        rate.ended()
    assert rate.tokens_per_s == 500
    rate.ended()  # an end without a beginning
    for _ in range(40):
        rate.began(1)
    assert len(rate._begun) <= 16
