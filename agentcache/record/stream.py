"""The answer in a stream of server-sent events, of any API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from agentcache.replay.answers import read_answer
from agentcache.replay.trace import Answer, ToolCall


def answer_of_stream(raw: bytes) -> Answer:
    """What was answered up to where the stream ended; events that say nothing of it are passed over."""
    parts = _Parts()
    for event in _events(raw):
        if isinstance(event.get("response"), dict) and event.get("type") == "response.completed":
            return read_answer(event["response"])
        parts.add(event)
    return parts.answer()


class _Parts:
    """Text and calls, collected piece by piece. Calls are told apart by their index."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._calls: dict[Any, list[str]] = {}

    def add(self, event: dict[str, Any]) -> None:
        kind = event.get("type")
        if kind == "content_block_start" and event.get("content_block", {}).get("type") == "tool_use":
            self._calls[event.get("index")] = [event["content_block"].get("name", "")]
        elif kind == "content_block_delta":
            delta = event.get("delta", {})
            self._text.append(delta.get("text") or "")
            if event.get("index") in self._calls:
                self._calls[event.get("index")].append(delta.get("partial_json") or "")
        elif kind == "response.output_text.delta":
            self._text.append(event.get("delta") or "")
        elif kind == "response.function_call_arguments.done":
            self._calls[event.get("item_id")] = [event.get("name") or "", event.get("arguments") or ""]
        for choice in event.get("choices") or ():
            self._add_choice(choice)

    def _add_choice(self, choice: dict[str, Any]) -> None:
        if choice.get("index", 0):
            return  # of several answers the first is the one that counts
        delta = choice.get("delta") or {}
        self._text.append(delta.get("content") or choice.get("text") or "")
        for call in delta.get("tool_calls") or ():
            function = call.get("function") or {}
            parts = self._calls.setdefault(call.get("index"), [""])
            parts[0] += function.get("name") or ""
            parts.append(function.get("arguments") or "")

    def answer(self) -> Answer:
        calls = (ToolCall(name, "".join(arguments) or "{}") for name, *arguments in self._calls.values())
        return Answer("".join(self._text), tuple(calls))


def _events(raw: bytes) -> Iterator[dict[str, Any]]:
    """The JSON objects that `data:` lines hold."""
    for line in raw.decode("utf-8", "replace").split("\n"):
        if line.startswith("data:"):
            try:
                event = json.loads(line[5:])
            except ValueError:
                continue  # [DONE], or a line that was cut
            if isinstance(event, dict):
                yield event
