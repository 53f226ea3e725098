"""What a model answered, read from any of the three APIs' answers or from a trace's short form."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agentcache.replay.trace import Answer, ToolCall


def read_answer(response: Any) -> Answer:
    """The answer in a response body: `{text, calls}`, chat, Responses, Messages or completions; empty if unknown."""
    if not isinstance(response, Mapping):
        return Answer(response) if isinstance(response, str) else Answer()
    choices = response.get("choices")
    if isinstance(choices, Sequence) and choices and isinstance(choices[0], Mapping):
        message = choices[0].get("message")
        if isinstance(message, Mapping):
            return answer_of_message(message)
        return Answer(str(choices[0].get("text") or ""))
    if isinstance(response.get("output"), Sequence) and not isinstance(response["output"], str):
        return _of_items(response["output"])
    if response.get("role") == "assistant" or isinstance(response.get("content"), list):
        return answer_of_message(response)
    text = response.get("text")
    calls = response.get("calls")
    return Answer(
        text if isinstance(text, str) else "",
        tuple(_call(call.get("name"), call.get("args")) for call in calls if isinstance(call, Mapping))
        if isinstance(calls, Sequence)
        else (),
    )


def answer_of_message(message: Mapping[str, Any]) -> Answer:
    """The answer that an assistant's message holds, in the chat API's form or in Anthropic's."""
    content = message.get("content")
    calls = [
        _call(call["function"].get("name"), call["function"].get("arguments"))
        for call in message.get("tool_calls") or ()
        if isinstance(call, Mapping) and isinstance(call.get("function"), Mapping)
    ]
    if not isinstance(content, list):
        return Answer(content if isinstance(content, str) else "", tuple(calls))
    texts: list[str] = []
    for part in content:
        if not isinstance(part, Mapping):
            continue
        if part.get("type") == "tool_use":
            calls.append(_call(part.get("name"), part.get("input")))
        elif isinstance(part.get("text"), str):
            texts.append(part["text"])
    return Answer("".join(texts), tuple(calls))


def _of_items(items: Sequence[Any]) -> Answer:
    """The answer in a Responses `output` list."""
    texts: list[str] = []
    calls: list[ToolCall] = []
    for item in items:
        if not isinstance(item, Mapping):
            continue
        if item.get("type") == "function_call":
            calls.append(_call(item.get("name"), item.get("arguments")))
        elif item.get("type") == "custom_tool_call":
            calls.append(_call(item.get("name"), {"input": item.get("input") or ""}))
        elif item.get("type") == "message":
            texts += [
                part.get("text") or "" for part in item.get("content") or () if isinstance(part, Mapping)
            ]
    return Answer("".join(texts), tuple(calls))


def _call(name: Any, arguments: Any) -> ToolCall:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    return ToolCall(str(name or ""), text)
