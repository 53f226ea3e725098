"""Reading traces: which format a file is in, and its requests.

| format | how it is known | a request is |
|---|---|---|
| our JSONL | lines with `path` and `body` | a line |
| request log | lines that are a body (`messages` or `input`), or hold one under `request` or `body` | a line |
| mini-swe-agent `traj.json` | an object with `messages` | each assistant message: all messages before it |
| SWE-agent `.traj` | an object with `trajectory` and `history` | each step: its `query`, or the history before it |

Any of them may be compressed with gzip.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentcache.errors import UsageError
from agentcache.replay.answers import answer_of_message, read_answer
from agentcache.replay.trace import Answer, Api, Request, api_of_path

_Record = tuple[float, Api, Mapping[str, Any], Answer]


def read_traces(paths: Sequence[Path]) -> list[Request]:
    """The requests of all files, one file after the other. UsageError, with file and line, for what is no trace."""
    requests: list[Request] = []
    for path in paths:
        for at_s, api, body, answer in _records(path):
            requests.append(Request(len(requests), path.name, at_s, api, body, answer))
    if not requests:
        raise UsageError(f"no request in {', '.join(str(path) for path in paths)}: is it a trace?")
    return requests


def _records(path: Path) -> Iterator[_Record]:
    text = _text(path)
    head = text.lstrip()[:1]
    whole = _json(text) if head in ("{", "[") else None
    if isinstance(whole, Mapping) and isinstance(whole.get("trajectory"), list):
        yield from _swe_agent(path, whole)
    elif isinstance(whole, Mapping) and _is_trajectory(whole):
        yield from _conversation(path, whole["messages"], whole)
    elif isinstance(whole, list):
        for number, item in enumerate(whole, start=1):
            yield from _line(path, number, item)
    else:
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                item = _json(line)
                if item is None:
                    raise UsageError(f"{path}, line {number}: no JSON; a trace has one JSON object a line")
                yield from _line(path, number, item)


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
    except FileNotFoundError:
        raise UsageError(f"there is no trace {path}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    return data.decode("utf-8", "surrogateescape")


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _is_trajectory(whole: Mapping[str, Any]) -> bool:
    """A saved conversation rather than one request: it says so, or ends with what the model said."""
    messages = whole.get("messages")
    if not isinstance(messages, list) or not messages:
        return False
    last = messages[-1]
    ends = isinstance(last, Mapping) and last.get("role") == "assistant" and "model" not in whole
    return "trajectory_format" in whole or "info" in whole or ends


def _line(path: Path, number: int, item: Any) -> Iterator[_Record]:
    """One line of a trace or of a request log; lines that are no request to a model are passed over."""
    if not isinstance(item, Mapping):
        raise UsageError(f"{path}, line {number}: a JSON object is expected")
    body = next(
        (item[key] for key in ("body", "request", "request_body") if isinstance(item.get(key), Mapping)), item
    )
    where = next((item[key] for key in ("path", "url", "endpoint") if isinstance(item.get(key), str)), "")
    api = api_of_path(where) if where else _api_of_body(body)
    if api is None:
        if where:
            return  # /v1/models, count_tokens and the like
        raise UsageError(
            f"{path}, line {number}: neither `messages` nor `input` nor `prompt`; is it a request?"
        )
    response = next((item[key] for key in ("response", "response_body") if key in item), None)
    if isinstance(response, Mapping) and isinstance(response.get("body"), Mapping):
        response = response["body"]  # OpenAI's batch files
    at_s = next(
        (item[key] for key in ("t", "time", "timestamp") if isinstance(item.get(key), int | float)), 0.0
    )
    yield float(at_s), api, body, read_answer(response)


def _api_of_body(body: Mapping[str, Any]) -> Api | None:
    messages = body.get("messages")
    if isinstance(messages, list):
        return "messages" if _looks_anthropic(body, messages) else "chat"
    if "input" in body:
        return "responses"
    return "completions" if "prompt" in body else None


def _looks_anthropic(body: Mapping[str, Any], messages: Iterable[Any]) -> bool:
    """Only Anthropic's API has `system` beside the messages, tools with `input_schema`, and such content parts."""
    if "system" in body or any(
        isinstance(t, Mapping) and "input_schema" in t for t in body.get("tools") or ()
    ):
        return True
    parts = (
        part
        for message in messages
        if isinstance(message, Mapping) and isinstance(message.get("content"), list)
        for part in message["content"]
    )
    return any(
        isinstance(part, Mapping) and part.get("type") in ("tool_use", "tool_result") for part in parts
    )


def _conversation(path: Path, messages: Sequence[Any], more: Mapping[str, Any]) -> Iterator[_Record]:
    """A saved conversation: every message of the model was asked for with all messages before it."""
    sent = [_plain(path, message) for message in messages]
    tools = more.get("tools")
    for number, message in enumerate(sent):
        if message["role"] == "assistant" and number:
            body: dict[str, Any] = {"messages": sent[:number]}
            if isinstance(tools, list):
                body["tools"] = tools
            yield float(number), "chat", body, answer_of_message(message)


def _swe_agent(path: Path, whole: Mapping[str, Any]) -> Iterator[_Record]:
    steps = [step for step in whole["trajectory"] if isinstance(step, Mapping)]
    if steps and all(isinstance(step.get("query"), list) for step in steps):
        for number, step in enumerate(steps):
            sent = [_plain(path, message) for message in step["query"]]
            yield float(number), "chat", {"messages": sent}, Answer(str(step.get("response") or ""))
        return
    history = whole.get("history")
    if not isinstance(history, list):
        raise UsageError(f"{path}: a SWE-agent trajectory without `query` in its steps needs its `history`")
    by_agent: dict[str, list[Any]] = {}
    for message in history:
        if isinstance(message, Mapping):
            by_agent.setdefault(str(message.get("agent", "")), []).append(message)
    for messages in by_agent.values():
        yield from _conversation(path, messages, {})


_KEPT = ("role", "content", "tool_calls", "tool_call_id", "name")


def _plain(path: Path, message: Any) -> dict[str, Any]:
    """A message less what a trajectory adds to it."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise UsageError(f"{path}: a message of the trajectory has no role")
    return {key: message[key] for key in _KEPT if message.get(key) is not None}
