"""Every API's request as chat messages and tools, the way vLLM turns them into what a chat template is given.

Followed is vLLM 0.32: `entrypoints/openai/responses/utils.py`, `entrypoints/anthropic/serving.py` and
`entrypoints/chat_utils.py`; `tests/replay/test_chat.py` compares with them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentcache.replay.trace import Answer, Request

_BILLING = "x-anthropic-billing-header"


@dataclass(frozen=True, slots=True)
class Chat:
    """What a chat template is given. messages: contents are texts, or lists of parts where there are several."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None


def chat_of(request: Request) -> Chat:
    """The chat of a request of any API but completions."""
    body = request.body
    if request.api == "responses":
        return Chat(list(_of_responses(body)), _tools_of_responses(body))
    if request.api == "messages":
        return Chat(list(_of_anthropic(body)), _tools_of_anthropic(body))
    messages = [_with_call_arguments(dict(m)) for m in body.get("messages") or () if isinstance(m, Mapping)]
    return Chat(messages, _tools(body))


def answer_message(answer: Answer) -> dict[str, Any]:
    """The message that an answer becomes in the next request."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.text}
    if answer.calls:
        message["tool_calls"] = [
            {
                "id": f"call_{i}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for i, call in enumerate(answer.calls)
        ]
    return _with_call_arguments(message)


def text_of(content: Any) -> str:
    """A message's content as one text: parts are joined by line ends, as vLLM does."""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        return ""
    return "\n".join(part_text(part) for part in content)


def part_text(part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping):
        for key in ("text", "refusal", "thinking"):
            if isinstance(part.get(key), str):
                return str(part[key])
    return ""


def _with_call_arguments(message: dict[str, Any]) -> dict[str, Any]:
    """Tool calls with their arguments as an object: what templates expect."""
    calls = message.get("tool_calls")
    if message.get("role") != "assistant" or not isinstance(calls, Sequence):
        return message
    read = []
    for call in calls:
        if isinstance(call, Mapping) and isinstance(call.get("function"), Mapping):
            function = dict(call["function"])
            arguments = function.get("arguments")
            if isinstance(arguments, str):
                try:
                    function["arguments"] = json.loads(arguments) if arguments else {}
                except ValueError:
                    function["arguments"] = arguments
            read.append({**call, "function": function})
    message["tool_calls"] = read
    return message


def _tools(body: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    found = [tool for tool in body.get("tools") or () if isinstance(tool, Mapping) and "function" in tool]
    return [_tool(tool["function"]) for tool in found] or None


def _tool(function: Mapping[str, Any]) -> dict[str, Any]:
    """A function as vLLM hands it to templates: the first three fields always, the others where they are set."""
    known = {name: function.get(name) for name in ("name", "description", "parameters")}
    known |= {name: function[name] for name in ("strict", "defer_loading") if function.get(name) is not None}
    return {"type": "function", "function": known}


def _tools_of_responses(body: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    tools: list[dict[str, Any]] = []
    for tool in body.get("tools") or ():
        if isinstance(tool, Mapping) and tool.get("type") == "namespace":
            inner = [one for one in tool.get("tools") or () if one.get("type") == "function"]
            tools += [_tool({**one, "name": f"{tool.get('name')}__{one.get('name')}"}) for one in inner]
        elif isinstance(tool, Mapping) and tool.get("type") == "function":
            tools.append(_tool(tool))
    return tools or None


def _tools_of_anthropic(body: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    found = [tool for tool in body.get("tools") or () if isinstance(tool, Mapping) and "input_schema" in tool]
    return [_tool({**tool, "parameters": tool["input_schema"]}) for tool in found] or None


def _of_responses(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if body.get("instructions"):
        messages.append({"role": "system", "content": body["instructions"]})
    given = body.get("input")
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    for item in given or ():
        if isinstance(item, Mapping):
            _add_item(messages, item)
    return [_with_call_arguments(message) for message in messages]


def _add_item(messages: list[dict[str, Any]], item: Mapping[str, Any]) -> None:
    """One Responses input item: calls and texts of the model join its message before them, if there is one."""
    kind = item.get("type")
    own = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
    if kind in ("function_call", "custom_tool_call"):
        arguments = item.get("arguments") or "{}"
        if kind == "custom_tool_call":
            arguments = json.dumps({"input": item.get("input") or ""})
        call = {
            "id": item.get("call_id"),
            "type": "function",
            "function": {"name": item.get("name"), "arguments": arguments},
        }
        if own is None:
            messages.append({"role": "assistant", "tool_calls": [call]})
        else:
            own.setdefault("tool_calls", []).append(call)
    elif kind in ("function_call_output", "custom_tool_call_output"):
        messages.append({"role": "tool", "content": item.get("output"), "tool_call_id": item.get("call_id")})
    elif kind == "reasoning":
        return  # the client's copy of what the model thought: templates leave it out of earlier turns
    elif item.get("role") == "assistant":
        content = item.get("content")
        text = content if isinstance(content, str) else part_text((content or [None])[0])
        if own is not None and own.get("content") is None:
            own["content"] = text
        else:
            messages.append({"role": "assistant", "content": text})
    elif "role" in item:
        messages.append({"role": item["role"], "content": item.get("content")})


def _of_anthropic(body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Anthropic's messages. System messages inside the list join the one in front, as for templates that demand it."""
    system = [_system_text(body.get("system"))]
    messages = [message for message in body.get("messages") or () if isinstance(message, Mapping)]
    system += [
        _system_text(message.get("content")) for message in messages if message.get("role") == "system"
    ]
    if any(system):
        yield {"role": "system", "content": "".join(system)}
    for message in messages:
        if message.get("role") != "system":
            yield from _of_anthropic_message(message)


def _system_text(content: Any) -> str:
    """vLLM leaves Claude Code's attribution header out: it changes with every session."""
    parts = [content] if isinstance(content, str) else [part_text(part) for part in content or ()]
    return "".join(part for part in parts if not part.startswith(_BILLING))


def _of_anthropic_message(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    content = message.get("content")
    if isinstance(content, str):
        yield {"role": message["role"], "content": content}
        return
    own: dict[str, Any] = {"role": message.get("role")}
    parts, calls = [], []
    for part in content or ():
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind == "text" and part.get("text"):
            parts.append({"type": "text", "text": part["text"]})
        elif kind == "tool_use":
            function = {"name": part.get("name") or "", "arguments": part.get("input") or {}}
            calls.append({"id": part.get("id"), "type": "function", "function": function})
        elif kind == "tool_result":
            inner = part.get("content")
            text = inner if isinstance(inner, str) else "\n".join(part_text(p) for p in inner or ())
            yield {"role": "tool", "tool_call_id": part.get("tool_use_id") or "", "content": text}
    if calls:
        own["tool_calls"] = calls
    if parts:
        own["content"] = parts[0]["text"] if len(parts) == 1 else parts
    if len(own) > 1:
        yield own
