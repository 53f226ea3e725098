"""Learning on the real engine: what a request had to compute is reused by the next one, and by nobody else's."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from agentcache.engine_client import EngineClient
from agentcache.entry import as_tokens, entries_of_stream
from agentcache.errors import EngineError
from agentcache.learn.views import NUMBERS
from tests.engine.serving import SERVED, Server, completion_body, learning

pytestmark = pytest.mark.engine

Encode = Callable[[str], list[int]]


@pytest.fixture(scope="module", autouse=True)
def worker(server: Server, model_folder: str) -> Iterator[None]:
    with learning(server, model_folder):
        yield


def settled(server: Server) -> dict[str, Any]:
    """The status once everything noted so far is learned."""
    assert server.client.learned_all(120.0), server.status()["learned"]
    return server.status()


def paragraph(encode: Encode, topic: str, lines: int = 14) -> list[int]:
    return encode(
        "".join(f"{topic} number {i}: the {topic} of part {i * 7} is {i * 13}.\n" for i in range(lines))
    )


def test_text_comes_back_in_another_order(
    server: Server, encode: Encode, texts: dict[str, list[int]]
) -> None:
    one, two = paragraph(encode, "colour"), paragraph(encode, "weight")
    first = server.ask(one + two + texts["question"], mode="fast")
    assert first.counters["reused_tokens"] == 0
    before = server.status()["learned"]
    learned = settled(server)["learned"]
    assert learned["spans"] >= 1
    assert learned["tokens"] * server.status()["token_bytes"] == learned["bytes"]
    second = server.ask(texts["system"] + two + one + texts["question"], mode="fast")
    whole = len(one) + len(two)
    assert second.counters["reused_tokens"] + second.counters["recomputed_tokens"] > 0.95 * whole
    assert second.counters["reused_tokens"] > 0.85 * whole
    after = settled(server)["learned"]
    assert after["hits"] > before["hits"]
    assert after["hit_tokens"] > before["hit_tokens"]


def test_an_answer_is_there_before_it_comes_back(
    server: Server, encode: Encode, texts: dict[str, list[int]]
) -> None:
    prompt = texts["system"] + encode("Count from one to thirty in words.") + texts["question"]
    body = completion_body(prompt) | {"max_tokens": 48, "ignore_eos": True, "logprobs": None}
    answer = server.client.post("/v1/completions", body)["choices"][0]["text"]
    settled(server)
    again = encode(answer)
    assert len(again) >= 32
    later = server.ask(encode("Earlier somebody wrote this:\n") + again + texts["question"], mode="fast")
    assert later.counters["reused_tokens"] + later.counters["recomputed_tokens"] >= len(again) - 4


def test_a_client_says_what_will_come(server: Server, encode: Encode, texts: dict[str, list[int]]) -> None:
    coming = paragraph(encode, "future")
    assert server.client.expect([coming], "expecting tenant")
    settled(server)
    other = server.ask(texts["system"] + coming + texts["question"], salt="another tenant", mode="fast")
    mine = server.ask(texts["system"] + coming + texts["question"], salt="expecting tenant", mode="fast")
    assert other.counters["reused_tokens"] == 0
    assert mine.counters["reused_tokens"] > 0.8 * len(coming)


def test_a_tenants_text_is_nobody_elses(server: Server, encode: Encode, texts: dict[str, list[int]]) -> None:
    secret = paragraph(encode, "secret")
    server.ask(secret + texts["question"], salt="tenant a", mode="fast")
    settled(server)
    other = server.ask(texts["system"] + secret + texts["question"], salt="tenant b", mode="fast")
    assert other.counters["reused_tokens"] == 0
    # behind what nobody has shown: what other tests' requests showed without a salt comes back without one
    public = server.ask(encode("Nobody asks for it.\n") + secret, mode="fast")
    assert public.counters["reused_tokens"] == 0
    own = server.ask(texts["system"] + secret + texts["question"], salt="tenant a", mode="fast")
    assert own.counters["reused_tokens"] > 0.8 * len(secret)


def test_nothing_is_noted_of_exact_requests_and_of_the_workers_own(
    server: Server, encode: Encode, texts: dict[str, list[int]]
) -> None:
    added = settled(server)["notes"]["added"]
    server.ask(paragraph(encode, "private") + texts["question"], mode="exact")
    server.client.precompute(SERVED, paragraph(encode, "stored"), [0, 100])
    time.sleep(0.2)
    assert settled(server)["notes"]["added"] == added


def test_only_the_worker_may_ask(server: Server) -> None:
    for path, body in (("notes", {}), ("weigh", {"weights": {}}), ("drop", {"entries": []})):
        answer = httpx.post(f"{server.client.url}/agentcache/{path}", json=body, timeout=30)
        assert answer.status_code == 403, path
    with (
        EngineClient(server.client.url, worker_key="a wrong one") as stranger,
        pytest.raises(EngineError, match="403"),
    ):
        stranger.notes()


def test_the_store_is_told_what_entries_are_worth(server: Server, encode: Encode) -> None:
    tokens = paragraph(encode, "weighty")
    server.store(tokens)
    info = entries_of_stream(server.status()["fingerprint"], "index", as_tokens(tokens), [0, len(tokens)])[0]
    server.client.weigh({info.id: 2.5})
    with sqlite3.connect(server.store_dir / "catalog.db") as catalog:
        assert catalog.execute("SELECT weight FROM entries WHERE id = ?", (info.id,)).fetchone() == (2.5,)
    catalog.close()


def test_a_numbered_file_whose_numbers_have_moved(
    server: Server, encode: Encode, texts: dict[str, list[int]]
) -> None:
    lines = [f"    result_{i} = compute(argument_{i}, {i * 3}) or default_{i}" for i in range(60)]

    def shown(some: list[str]) -> list[int]:
        return encode("".join(f"{NUMBERS['tab'](i + 1)}{line}\n" for i, line in enumerate(some)))

    stored = shown(lines)
    server.store(stored, 0, len(stored) // 2, len(stored))
    moved = shown(["import something", *lines])
    answer = server.ask(texts["system"] + moved + texts["question"], salt="numbers", mode="fast")
    assert answer.counters["reused_tokens"] > 0.7 * len(moved), "the lines' own tokens"
    assert answer.counters["recomputed_tokens"] > 59, "and a number for each"
    exact = server.ask(texts["system"] + moved + texts["question"], salt="numbers", mode="exact")
    best = max(exact.first, key=lambda token: exact.first[token])
    assert best in sorted(answer.first, key=lambda token: -answer.first[token])[:3]
