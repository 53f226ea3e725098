"""What answers while there is no engine: without one, over real sockets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import anthropic
import httpx
import openai
import pytest

from agentcache.listening import bind
from agentcache.standin import StandIn
from agentcache.supervisor import RestartPolicy


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with bind("127.0.0.1", 0) as bound:
        bound.listen(64)
        yield bound


@pytest.fixture
def url(listening: socket.socket) -> Iterator[str]:
    standin = StandIn(listening, lambda: 6.2)
    standin.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    standin.stop()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/health", "/agentcache/status", "/nothing/here"])
def test_everything_is_answered_with_503_and_when_to_come_again(url: str, path: str) -> None:
    for answer in (httpx.get(url + path), httpx.post(url + path, content=b"not json")):
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "7"
        assert answer.json()["error"]["code"] == 503
        assert answer.headers["connection"] == "close", "the next request may reach the engine"


def test_the_sdks_see_an_error_that_they_retry(url: str) -> None:
    with pytest.raises(openai.InternalServerError) as openai_error:
        openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0).models.list()
    assert openai_error.value.status_code == 503
    with pytest.raises(anthropic.APIStatusError) as anthropic_error:
        anthropic.Anthropic(base_url=url, api_key="x", max_retries=0).messages.create(
            model="m", max_tokens=1, messages=[{"role": "user", "content": "hello"}]
        )
    assert anthropic_error.value.status_code in (503, 529)
    body = anthropic_error.value.body
    assert isinstance(body, dict)
    assert body["error"]["type"] == "overloaded_error"


def test_a_large_body_still_gets_its_answer(url: str) -> None:
    """Not a reset connection: all of it is taken first."""
    assert httpx.post(f"{url}/v1/messages", content=b"x" * (20 << 20)).status_code == 503


def test_who_takes_over_answers_what_was_queued(listening: socket.socket) -> None:
    """The kernel keeps connections that nobody has accepted: none is refused between two who answer."""
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    answers: list[int] = []
    asking = threading.Thread(target=lambda: answers.append(httpx.get(url, timeout=30).status_code))
    asking.start()
    first = StandIn(listening, lambda: 1.0)
    first.start()
    asking.join(30)
    first.stop()
    waiting = threading.Thread(target=lambda: answers.append(httpx.get(url, timeout=30).status_code))
    waiting.start()
    second = StandIn(listening, lambda: 1.0)
    second.start()
    waiting.join(30)
    second.stop()
    assert answers == [503, 503]


def test_the_pause_between_starts_doubles_up_to_a_limit() -> None:
    policy = RestartPolicy(first_delay_s=1.0, longest_delay_s=5.0)
    assert [policy.delay_s(crashes) for crashes in range(1, 6)] == [1.0, 2.0, 4.0, 5.0, 5.0]
