"""The three APIs on one port, through their vendors' own SDKs, streaming included."""

from __future__ import annotations

import anthropic
import openai
import pytest

from tests.engine.serving import SERVED, Server

pytestmark = pytest.mark.engine
QUESTION = "Name one colour."
GREEDY = {"temperature": 0.0}


@pytest.fixture
def openai_client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.client.url}/v1", api_key="unused")


@pytest.fixture
def anthropic_client(server: Server) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.client.url, api_key="unused")


def test_chat_completions(openai_client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": QUESTION}]
    whole = openai_client.chat.completions.create(
        model=SERVED,
        messages=messages,
        max_tokens=12,
        temperature=0,  # type: ignore[arg-type]
    )
    text = whole.choices[0].message.content
    assert text
    chunks = openai_client.chat.completions.create(
        model=SERVED,
        messages=messages,
        max_tokens=12,
        temperature=0,
        stream=True,  # type: ignore[arg-type]
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text


def test_responses(openai_client: openai.OpenAI) -> None:
    whole = openai_client.responses.create(model=SERVED, input=QUESTION, max_output_tokens=12, temperature=0)
    assert whole.output_text
    with openai_client.responses.stream(
        model=SERVED, input=QUESTION, max_output_tokens=12, temperature=0
    ) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    assert text == whole.output_text


def test_messages(anthropic_client: anthropic.Anthropic) -> None:
    messages: list[anthropic.types.MessageParam] = [{"role": "user", "content": QUESTION}]
    whole = anthropic_client.messages.create(
        model=SERVED, messages=messages, max_tokens=12, extra_body=GREEDY
    )
    block = whole.content[0]
    assert block.type == "text"
    assert block.text
    with anthropic_client.messages.stream(
        model=SERVED, messages=messages, max_tokens=12, extra_body=GREEDY
    ) as stream:
        assert "".join(stream.text_stream) == block.text


def test_a_mode_can_be_asked_for_in_every_api(
    server: Server, openai_client: openai.OpenAI, anthropic_client: anthropic.Anthropic
) -> None:
    extra = {"kv_transfer_params": {"agentcache": {"mode": "exact"}}}
    before = server.status()["totals"]["requests"]
    openai_client.chat.completions.create(
        model=SERVED, messages=[{"role": "user", "content": QUESTION}], max_tokens=1, extra_body=extra
    )
    openai_client.responses.create(model=SERVED, input=QUESTION, max_output_tokens=2, extra_body=extra)
    anthropic_client.messages.create(
        model=SERVED, messages=[{"role": "user", "content": QUESTION}], max_tokens=1, extra_body=extra
    )
    from tests.engine.test_requests import eventually

    assert eventually(lambda: server.status()["totals"]["requests"] == before + 3)
    assert [record["mode"] for record in server.status()["recent"][-3:]] == ["exact"] * 3
