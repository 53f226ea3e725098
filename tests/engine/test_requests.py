"""Ordinary and awkward traffic: right answers, honest counters, no page leaked."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.engine.serving import SERVED, Answer, Server, largest_difference

pytestmark = pytest.mark.engine


def tokens_of(answer: Answer) -> dict[str, int]:
    return {name: value for name, value in answer.counters.items() if name.endswith("_tokens")}


def counters_add_up(answer: Answer) -> bool:
    c = answer.counters
    parts = ("prefix_hit_tokens", "reused_tokens", "recomputed_tokens", "computed_tokens")
    return bool(sum(c[part] for part in parts) == c["prompt_tokens"])


def test_the_same_prompt_twice_hits_the_prefix_cache_and_answers_the_same(
    server: Server, prompts: dict[str, list[int]]
) -> None:
    first = server.ask(prompts["shuffled"], salt="twice", mode="fast")
    second = server.ask(prompts["shuffled"], salt="twice", mode="fast")
    assert first.counters["prefix_hit_tokens"] == 0
    assert first.counters["reused_tokens"] > 1700
    assert second.counters["prefix_hit_tokens"] > 1700
    assert counters_add_up(first)
    assert counters_add_up(second)
    assert second.tokens == first.tokens
    assert largest_difference(first.first, second.first) < 1e-3


def test_a_prompt_that_is_nothing_but_stored_tokens(server: Server, texts: dict[str, list[int]]) -> None:
    answer = server.ask(texts["textwrap"], salt="all stored", mode="fast")
    exact = server.ask(texts["textwrap"], salt="all stored", mode="exact")
    assert answer.counters["reused_tokens"] == 699, "vLLM computes the last token itself, for its logits"
    assert answer.tokens == exact.tokens
    assert largest_difference(answer.first, exact.first) < 1e-3


def test_a_prompt_that_shares_nothing(
    server: Server, plain: dict[str, Answer], prompts: dict[str, list[int]]
) -> None:
    answer = server.ask(prompts["unknown"], salt="nothing", mode="fast")
    assert answer.counters["reused_tokens"] == 0
    assert answer.counters["fallback"] == ""
    assert answer.tokens == plain["unknown"].tokens
    assert largest_difference(answer.first, plain["unknown"].first) < 1e-3


def test_a_prompt_shorter_than_a_page(
    server: Server, plain: dict[str, Answer], prompts: dict[str, list[int]]
) -> None:
    answer = server.ask(prompts["short"], salt="short", mode="fast")
    assert answer.tokens == plain["short"].tokens
    assert counters_add_up(answer)


def test_a_short_span_inside_one_page(server: Server, texts: dict[str, list[int]]) -> None:
    prompt = texts["system"] + texts["shlex"][:60] + texts["question"]
    answer = server.ask(prompt, salt="inside", mode="fast")
    assert answer.counters["reused_tokens"] == 60 - int(0.08 * 60)
    assert counters_add_up(answer)


def test_exact_never_sees_blended_pages(
    server: Server, plain: dict[str, Answer], prompts: dict[str, list[int]]
) -> None:
    fast = server.ask(prompts["shuffled"], mode="fast", strategy="none")
    assert fast.counters["reused_tokens"] + fast.counters["prefix_hit_tokens"] > 1700
    assert largest_difference(fast.first, plain["shuffled"].first) > 1e-2, "the blended pages do differ"
    exact = server.ask(prompts["shuffled"], mode="exact")
    assert exact.counters["reused_tokens"] == 0
    assert exact.tokens == plain["shuffled"].tokens
    assert largest_difference(exact.first, plain["shuffled"].first) < 1e-3


def test_eight_requests_at_once_answer_as_they_do_alone(server: Server, texts: dict[str, list[int]]) -> None:
    names = ["textwrap", "argparse", "shlex"]
    wanted = []
    for number in range(8):
        order = names[number % 3 :] + names[: number % 3]
        body = [token for name in order for token in texts[name][: 300 + 10 * number]]
        wanted.append(texts["system"] + body + texts["question"])
    alone = [server.ask(prompt, salt=f"alone{i}", mode="fast") for i, prompt in enumerate(wanted)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda i: server.ask(wanted[i], salt=f"together{i}", mode="fast"), range(8)))
    for one, other in zip(alone, together, strict=True):
        assert tokens_of(one) == tokens_of(other)
        assert one.counters["reused_tokens"] > 700
        assert largest_difference(one.first, other.first) < 1e-3
        assert one.tokens == other.tokens


def test_requests_that_share_a_prefix_at_once(server: Server, prompts: dict[str, list[int]]) -> None:
    """The second and third hit pages that the first is only about to fill; they must not read them too early."""
    head = list(reversed(prompts["shuffled"]))[:700]
    wanted = [head + prompts["shuffled"][i:] for i in (0, 40, 80)]
    alone = [server.ask(prompt, salt=f"apart{i}", mode="fast") for i, prompt in enumerate(wanted)]
    with ThreadPoolExecutor(3) as pool:
        together = list(pool.map(lambda prompt: server.ask(prompt, salt="shared", mode="fast"), wanted))
    for one, other in zip(alone, together, strict=True):
        assert one.tokens == other.tokens
        assert largest_difference(one.first, other.first) < 1e-3
    assert sum(answer.counters["prefix_hit_tokens"] for answer in together) >= 640


def test_an_aborted_stream_leaks_no_page(server: Server, prompts: dict[str, list[int]]) -> None:
    before = server.pages_used()
    body = {
        "model": SERVED,
        "prompt": prompts["shuffled"],
        "max_tokens": 400,
        "stream": True,
        "ignore_eos": True,
        "kv_transfer_params": {"agentcache": {"mode": "fast"}},
    }
    for _ in range(3):
        with server.client.stream("/v1/completions", body) as response:
            assert next(response.iter_lines())
    assert eventually(lambda: server.pages_used() == before), (
        f"{server.pages_used()} pages in use, {before} before"
    )


def test_a_request_with_a_salt_does_not_see_another_salts_entries(
    server: Server, texts: dict[str, list[int]]
) -> None:
    own = server.encode(
        "def very_private(argument):\n" + "".join(f"    step_{i} = {i} * argument\n" for i in range(40))
    )
    server.store(own, salt="alice")
    prompt = texts["system"] + own + texts["question"]
    assert server.ask(prompt, salt="alice", mode="fast").counters["reused_tokens"] > 300
    assert server.ask(prompt, salt="bob", mode="fast").counters["reused_tokens"] == 0
    assert server.ask(prompt, mode="fast").counters["reused_tokens"] == 0


def test_senseless_parameters_are_counted_and_answered_exactly(
    server: Server, plain: dict[str, Answer], prompts: dict[str, list[int]]
) -> None:
    answer = server.ask(prompts["shuffled"], mode="faster")
    assert answer.counters["fallback"] == "bad parameters: mode must be 'fast' or 'exact'"
    assert answer.tokens == plain["shuffled"].tokens
    assert server.reason("bad parameters: mode must be 'fast' or 'exact'") == 1


def test_prompt_logprobs_fall_back_with_a_reason(server: Server, prompts: dict[str, list[int]]) -> None:
    body = {
        "model": SERVED,
        "prompt": prompts["shuffled"][:600],
        "max_tokens": 1,
        "prompt_logprobs": 1,
        "kv_transfer_params": {"agentcache": {"mode": "fast"}},
    }
    answer = server.client.post("/v1/completions", body)
    assert answer["kv_transfer_params"]["agentcache"]["fallback"] == "prompt logprobs"


def test_the_status_counts_requests(server: Server, prompts: dict[str, list[int]]) -> None:
    before = server.status()["totals"]
    answer = server.ask(prompts["shuffled"], salt="counted", mode="fast")
    assert eventually(lambda: server.status()["totals"]["requests"] == before["requests"] + 1)
    status = server.status()
    for name in (
        "prompt_tokens",
        "prefix_hit_tokens",
        "reused_tokens",
        "recomputed_tokens",
        "computed_tokens",
    ):
        assert status["totals"][name] - before[name] == answer.counters[name]
    assert status["recent"][-1]["prompt_tokens"] == len(prompts["shuffled"])
    assert status["tiers"]["disk"]["bytes"] > 0
    assert status["blending"] is True


def eventually(check: object, timeout_s: float = 20.0) -> bool:
    """Whether `check()` becomes true within the time."""
    assert callable(check)
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while not check():
        if time.monotonic() > deadline:
            return False
        pause.wait(0.05)
    return True
