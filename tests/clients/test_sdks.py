"""OpenAI's and Anthropic's SDKs with tools, streamed, as agents use them."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import openai
import pytest

from tests.engine.serving import SERVED, Server

pytestmark = pytest.mark.engine
SCHEMA = {
    "type": "object",
    "properties": {"colour": {"type": "string", "enum": ["red", "green", "blue"]}},
    "required": ["colour"],
    "additionalProperties": False,
}
QUESTION: list[Any] = [{"role": "user", "content": "Paint the wall in the colour of the sky."}]
OPENAI_TOOL: Any = {"type": "function", "function": {"name": "paint", "parameters": SCHEMA}}
ANTHROPIC_TOOL: Any = {"name": "paint", "input_schema": SCHEMA}


def chat(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.client.url}/v1", api_key="unused")


def messages(server: Server) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.client.url, api_key="unused")


def test_a_tool_call_streamed_through_chat_completions(server: Server) -> None:
    """The tool is chosen for the model, which is too small to choose; its arguments are its own."""
    chunks = chat(server).chat.completions.create(
        model=SERVED,
        messages=QUESTION,
        tools=[OPENAI_TOOL],
        tool_choice={"type": "function", "function": {"name": "paint"}},
        max_tokens=48,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    name, arguments, usage = "", "", None
    for chunk in chunks:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            for call in choice.delta.tool_calls or []:
                assert call.function is not None
                name += call.function.name or ""
                arguments += call.function.arguments or ""
    assert name == "paint"
    json.loads(arguments)  # vLLM holds the model to JSON, not to the schema
    assert usage is not None
    assert usage.prompt_tokens > 0


def test_a_tool_call_streamed_through_messages(server: Server) -> None:
    """Its events, not the SDK's sum of them: the model's arguments need not be an object, which the sum insists on."""
    events = messages(server).messages.create(
        model=SERVED,
        max_tokens=48,
        messages=QUESTION,
        tools=[ANTHROPIC_TOOL],
        tool_choice={"type": "tool", "name": "paint"},
        extra_body={"temperature": 0.0},
        stream=True,
    )
    kinds, names = [], []
    for event in events:
        kinds.append(event.type)
        if event.type == "content_block_start" and event.content_block.type == "tool_use":
            names.append(event.content_block.name)
    assert names == ["paint"]
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"


def test_a_tools_result_is_a_turn_like_any_other_and_is_warm_the_next_time(
    server: Server, texts: dict[str, list[int]]
) -> None:
    """A whole loop in each API: call, result, answer. The result is a known file: it is reused, and said to be."""
    import shlex
    from pathlib import Path

    source = "".join(Path(shlex.__file__).read_text()[:1500])
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "read", "arguments": '{"path": "shlex.py"}'},
    }
    turns: list[Any] = [
        {"role": "user", "content": "Read shlex.py."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": source},
        {"role": "user", "content": "What is it?"},
    ]
    whole = chat(server).chat.completions.create(
        model=SERVED, messages=turns, tools=[OPENAI_TOOL], max_tokens=4, temperature=0
    )
    assert whole.usage is not None
    assert whole.usage.prompt_tokens_details is not None
    cached = whole.usage.prompt_tokens_details.cached_tokens or 0
    assert 0 < cached < whole.usage.prompt_tokens, "reused tokens are where clients look"

    use = {"type": "tool_use", "id": "call_1", "name": "read", "input": {"path": "shlex.py"}}
    result = {"type": "tool_result", "tool_use_id": "call_1", "content": source}
    loop: list[Any] = [
        {"role": "user", "content": "Please read shlex.py."},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result, {"type": "text", "text": "What is it?"}]},
    ]
    answer = messages(server).messages.create(
        model=SERVED, max_tokens=4, messages=loop, tools=[ANTHROPIC_TOOL], extra_body={"temperature": 0.0}
    )
    assert (answer.usage.cache_read_input_tokens or 0) > 0
