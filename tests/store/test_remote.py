"""The remote tier on real servers: what one machine stores another reads; a bad remote costs nothing but itself."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from agentcache.entry import EntryInfo
from agentcache.errors import UsageError
from agentcache.store import EntryCorrupt, EntryMissing, EntryStore
from agentcache.store.bench import Bench, Rate
from agentcache.store.buckets import BucketError, open_bucket

from . import servers
from .conftest import LAYOUT, MODEL, bits, make_entry
from .servers import Server

INF = float("inf")


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with servers.redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def s3() -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as environment, servers.s3() as server:
        environment.setenv("AWS_ACCESS_KEY_ID", "test")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "test")
        yield server


@pytest.fixture(params=["redis", "s3"])
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(request.param)
    bucket = open_bucket(found.url, 5)
    bucket.delete(list(bucket.keys("")))
    return found


class Machine:
    """A store with a root of its own; `told`: the entries it was told of."""

    def __init__(self, root: Path, url: str, *, timeout_s: float = 5.0, codec: str = "raw") -> None:
        self.told: list[EntryInfo] = []
        self.store = EntryStore.open(
            root,
            MODEL,
            LAYOUT,
            1 << 22,
            1 << 26,
            on_add=self.told.extend,
            remote_url=url,
            remote_codec=codec,
            remote_timeout_s=timeout_s,
        )
        assert self.store._remote is not None
        self.remote = self.store._remote

    def look(self) -> None:
        """As its thread does every ten seconds."""
        self.remote._next_look = 0.0
        self.remote.tick()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[type[Machine]]:
    made: list[Machine] = []

    class Made(Machine):
        def __init__(self, name: str, url: str, **more: float | str) -> None:
            super().__init__(tmp_path / name, url, **more)  # type: ignore[arg-type]
            made.append(self)

    yield Made
    for one in made:
        one.store.close()


def test_what_one_machine_stores_another_reads(server: Server, machine: type[Machine]) -> None:
    one, two = machine("one", server.url), machine("two", server.url)
    entries = [make_entry(seed, salt="tenant" if seed % 2 else "") for seed in range(6)]
    for entry in entries:
        one.store.put(*entry)
    assert one.store.flush(30)
    two.look()
    assert {info.id for info in two.told} == {info.id for info, _ in entries}
    assert "tenant" not in "".join(open_bucket(server.url, 5).keys(""))
    info, kv = entries[0]
    assert not two.store.ready(info.id)
    assert 0 < two.store.wait_s(info) < 10
    assert bits(two.store.read(info.id)) == bits(kv)
    assert two.store.flush(30)
    assert two.store.ready(info.id)  # it has moved up
    assert two.store.wait_s(info) == 0
    two.store.prefetch([info.id for info, _ in entries])
    until = time.monotonic() + 30
    while not all(two.store.ready(info.id) for info, _ in entries) and time.monotonic() < until:
        time.sleep(0.01)
    server_hits = two.store.stats().tiers["remote"].hits
    assert server_hits == 6
    assert all(bits(two.store.read(info.id)) == bits(kv) for info, kv in entries)
    assert two.store.stats().tiers["remote"].hits == server_hits
    assert one.store.stats().errors == two.store.stats().errors == {}
    # and an entry removed by one is missed by the other, and told so
    one.store.remove(info.id)
    three = machine("three", server.url)
    three.look()
    assert info.id not in {found.id for found in three.told}
    assert len(three.told) == 5


def test_a_codec_of_its_own(redis: Server, machine: type[Machine]) -> None:
    one, two = machine("one", redis.url, codec="int8"), machine("two", redis.url)
    info, kv = make_entry(40)
    one.store.put(info, kv)
    assert one.store.flush(30)
    assert bits(one.store.read(info.id)) == bits(kv)
    two.look()
    assert torch.allclose(two.store.read(info.id).float(), kv.float(), atol=0.05)


def test_lying_is_found_out(server: Server, machine: type[Machine]) -> None:
    one, two = machine("one", server.url), machine("two", server.url)
    entries = [make_entry(seed) for seed in range(20, 24)]
    for entry in entries:
        one.store.put(*entry)
    assert one.store.flush(30)
    two.look()
    bucket = open_bucket(server.url, 5)
    objects = {key.rpartition("/")[2]: key for key in bucket.keys("") if "/infos/" not in key}
    ids = [info.id for info, _ in entries]
    whole = bytes(bucket.get(objects[ids[0]]) or b"")
    flipped = bytearray(whole)
    flipped[5000] ^= 1
    bucket.put(objects[ids[0]], [memoryview(flipped)])  # a bit
    bucket.put(objects[ids[1]], [memoryview(whole)])  # another entry
    bucket.put(objects[ids[2]], [memoryview(whole[:100])])  # cut
    bucket.delete([objects[ids[3]]])  # gone
    for id in ids[:3]:
        with pytest.raises(EntryCorrupt):
            two.store.read(id)
    with pytest.raises(EntryMissing):
        two.store.read(ids[3])
    assert two.store.missing(ids) == ids
    assert two.store.stats().errors == {"remote_lied": 3}
    assert all(bits(one.store.read(info.id)) == bits(kv) for info, kv in entries)


def test_digits_of_an_address_are_no_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    with socket.socket() as held:  # nobody listens
        for port in range(40300, 40400):
            with suppress(OSError):
                held.bind(("127.0.0.1", port))
                break
        bucket = open_bucket(f"s3://entries-404?endpoint=http://127.0.0.1:{port}", 1)
        with pytest.raises(BucketError) as failure:
            list(bucket.keys(""))
    assert failure.value.reason == "remote_down"


def test_down_at_the_start_and_back_later(server: Server, machine: type[Machine]) -> None:
    server.kill()
    one = machine("one", server.url, timeout_s=1)
    info, kv = make_entry(50)
    one.store.put(info, kv)
    assert one.store._writer.flush(30)
    assert bits(one.store.read(info.id)) == bits(kv)  # served meanwhile, without a wait
    until = time.monotonic() + 30
    while not one.remote.bench.out and time.monotonic() < until:
        time.sleep(0.01)
    assert one.store.stats().errors.keys() == {"remote_down"}
    server.restart()
    if server.url.startswith("s3"):
        servers.make_bucket(server.port)
    assert one.store._sender is not None
    assert one.store._sender.flush(60)
    two = machine("two", server.url)
    two.look()
    assert [found.id for found in two.told] == [info.id]


def test_slow_is_benched(server: Server, machine: type[Machine]) -> None:
    one, two = machine("one", server.url), machine("two", server.url, timeout_s=0.3)
    infos = [make_entry(seed)[0] for seed in range(60, 63)]
    for seed in range(60, 63):
        one.store.put(*make_entry(seed))
    assert one.store.flush(30)
    two.look()
    server.freeze()
    try:
        with pytest.raises(EntryMissing, match="remote_slow"):
            two.store.read(infos[0].id)
        assert two.store.wait_s(infos[1]) == INF
        with pytest.raises(EntryMissing):  # at once: nobody asks a benched tier
            two.store.read(infos[1].id)
        assert two.store.stats().errors == {"remote_slow": 1}
    finally:
        server.thaw()
    until = time.monotonic() + 30
    while two.store.wait_s(infos[1]) == INF and time.monotonic() < until:
        time.sleep(0.05)
    assert bits(two.store.read(infos[1].id)) == bits(make_entry(61)[1])


def test_full_is_counted_and_costs_nothing_here(redis: Server, machine: type[Machine]) -> None:
    import redis as client

    far = client.Redis(port=redis.port)
    far.flushall()
    far.config_set("maxmemory-policy", "noeviction")
    far.config_set("maxmemory", "1")
    try:
        one = machine("one", redis.url)
        for seed in range(5):
            one.store.put(*make_entry(seed))
        assert one.store._writer.flush(30)
        until = time.monotonic() + 30
        while not one.store.stats().errors and time.monotonic() < until:
            time.sleep(0.01)
        assert one.store.stats().errors.keys() == {"remote_full"}
        assert one.remote.bench.out
        assert all(
            bits(one.store.read(make_entry(seed)[0].id)) == bits(make_entry(seed)[1]) for seed in range(5)
        )
    finally:
        far.config_set("maxmemory", "0")
    assert one.store.flush(60)
    assert one.store.stats().tiers["remote"].entries == 5
    far.close()


def test_benched_longer_each_time() -> None:
    now = 0.0
    bench = Bench(lambda: now)
    pauses = []
    for _ in range(9):
        bench.failed()
        bench.failed()  # what was under way
        began = now
        while bench.out:
            now += 0.25
        pauses.append(now - began)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    bench.worked()
    assert not bench.out
    bench.failed()
    now += 1
    assert not bench.out


def test_the_estimate_learns() -> None:
    rate = Rate(latency_s=0.02, bytes_per_s=100e6)
    for _ in range(30):
        rate.measured(1000, 0.5)
        rate.measured(10_000_000, 0.5 + 2.0)
    assert 0.4 < rate.expected_s(0) < 0.6
    assert 2.2 < rate.expected_s(10_000_000) < 2.8
    assert 19 < rate.expected_s(100_000_000) < 23


def test_urls() -> None:
    for url in ("http://x", "s3://", "redis://", "file:///tmp", ""):
        with pytest.raises(UsageError, match="not a remote tier"):
            open_bucket(url, 1)
