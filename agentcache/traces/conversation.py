"""A conversation of an agent with a model, kept in the chat API's form and sent in the client's own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agentcache.replay.trace import PATHS, Answer, ToolCall
from agentcache.traces.clients import Client


class Conversation:
    """Messages so far. `ask` makes the trace line of sending them, and appends the answer."""

    def __init__(self, client: Client, role: str, when: str, session: int, task: str) -> None:
        self._client = client
        self._tools = client.tool_schemas()
        self._messages: list[dict[str, Any]] = [
            {"role": "system", "content": client.system(role, when, session)},
        ]
        lead = client.lead(when[:10])
        if lead:
            self._messages.append({"role": "user", "content": lead})
        self._messages.append({"role": "user", "content": client.around(task)})
        self._calls = 0

    def ask(self, number: int, at_s: float, answer: Answer) -> dict[str, Any]:
        """The line of asking with what has been said so far and getting `answer`."""
        line = {
            "i": number,
            "t": round(at_s, 3),
            "path": PATHS[self._client.api],
            "body": self._body(),
            "response": {
                "text": answer.text,
                "calls": [{"name": call.name, "args": json.loads(call.arguments)} for call in answer.calls],
            },
        }
        message: dict[str, Any] = {"role": "assistant", "content": answer.text}
        if answer.calls:
            message["tool_calls"] = [self._call(call) for call in answer.calls]
        self._messages.append(message)
        return line

    def results(self, outputs: Sequence[str]) -> None:
        """What the tools of the last answer returned, in order."""
        calls = self._messages[-1]["tool_calls"]
        for call, output in zip(calls, outputs, strict=True):
            self._messages.append({"role": "tool", "tool_call_id": call["id"], "content": output})

    def _call(self, call: ToolCall) -> dict[str, Any]:
        self._calls += 1
        return {
            "id": f"call_{self._calls}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }

    def _body(self) -> dict[str, Any]:
        body: dict[str, Any] = {"model": "model", "stream": True}
        if self._client.api == "chat":
            return body | {"messages": list(self._messages), "tools": self._tools}
        if self._client.api == "responses":
            tools = [{"type": "function", **tool["function"]} for tool in self._tools]
            return body | {"input": [item for m in self._messages for item in _items(m)], "tools": tools}
        tools = [
            {"name": f["name"], "description": f["description"], "input_schema": f["parameters"]}
            for f in (tool["function"] for tool in self._tools)
        ]
        system, *rest = self._messages
        return body | {
            "max_tokens": 8000,
            "system": [{"type": "text", "text": system["content"]}],
            "messages": [_anthropic(message) for message in rest],
            "tools": tools,
        }


def _items(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A message as items of the Responses API."""
    role = message["role"]
    if role == "tool":
        return [
            {"type": "function_call_output", "call_id": message["tool_call_id"], "output": message["content"]}
        ]
    role = "developer" if role == "system" else role
    kind = "output_text" if role == "assistant" else "input_text"
    items: list[dict[str, Any]] = []
    if message["content"]:
        items.append(
            {"type": "message", "role": role, "content": [{"type": kind, "text": message["content"]}]}
        )
    items += [
        {"type": "function_call", "call_id": call["id"], **call["function"]}
        for call in message.get("tool_calls", ())
    ]
    return items


def _anthropic(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message of Anthropic's API."""
    if message["role"] == "tool":
        part = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"]}
        return {"role": "user", "content": [part]}
    parts: list[dict[str, Any]] = [{"type": "text", "text": message["content"]}] if message["content"] else []
    for call in message.get("tool_calls", ()):
        function = call["function"]
        parts.append(
            {
                "type": "tool_use",
                "id": call["id"],
                "name": function["name"],
                "input": json.loads(function["arguments"]),
            }
        )
    return {"role": message["role"], "content": parts}
