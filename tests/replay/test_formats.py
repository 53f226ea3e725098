"""Traces of all formats say the same."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from agentcache.errors import UsageError
from agentcache.replay.chat import chat_of
from agentcache.replay.formats import read_traces
from agentcache.replay.trace import ToolCall
from tests.replay.conftest import write_lines

SYSTEM = {"role": "system", "content": "Be brief."}
ASK = {"role": "user", "content": "What is in a.py?"}
CALL = {
    "role": "assistant",
    "content": "I look.",
    "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "cat", "arguments": '{"path": "a.py"}'}}
    ],
}
RESULT = {"role": "tool", "tool_call_id": "1", "content": "x = 1\n"}
DONE = {"role": "assistant", "content": "One line."}


def messages_of(path: Path) -> list[list[dict[str, Any]]]:
    return [chat_of(request).messages for request in read_traces([path])]


def test_own_lines_plain_and_gzip(tmp_path: Path) -> None:
    record = {
        "i": 0,
        "t": 1.5,
        "path": "/v1/chat/completions",
        "body": {"model": "m", "messages": [SYSTEM, ASK]},
        "response": {"text": "I look.", "calls": [{"name": "cat", "args": {"path": "a.py"}}]},
        "user_agent": "x",
    }
    plain = write_lines(tmp_path / "t.jsonl", [record, {"path": "/v1/models", "body": {}}])
    packed = tmp_path / "t.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    for path in (plain, packed):
        (request,) = read_traces([path])
        assert request.at_s == 1.5
        assert request.answer.text == "I look."
        assert request.answer.calls == (ToolCall("cat", '{"path": "a.py"}'),)
        assert chat_of(request).messages == [SYSTEM, ASK]


def test_mini_swe_agent(tmp_path: Path) -> None:
    path = tmp_path / "traj.json"
    path.write_text(
        json.dumps(
            {
                "trajectory_format": "mini-swe-agent-1",
                "info": {},
                "messages": [SYSTEM, ASK, CALL, RESULT, DONE],
            }
        )
    )
    first, second = read_traces([path])
    assert [m["role"] for m in chat_of(first).messages] == ["system", "user"]
    assert [m["role"] for m in chat_of(second).messages] == ["system", "user", "assistant", "tool"]
    assert first.answer.calls[0].name == "cat"
    assert second.answer.text == "One line."


@pytest.mark.parametrize("with_query", [True, False])
def test_swe_agent(tmp_path: Path, with_query: bool) -> None:
    step = {"action": "cat a.py", "observation": "x = 1", "response": "One line."}
    history = [SYSTEM, ASK, DONE]
    whole = {"trajectory": [step | ({"query": [SYSTEM, ASK]} if with_query else {})], "history": history}
    path = tmp_path / "a.traj"
    path.write_text(json.dumps(whole))
    (request,) = read_traces([path])
    assert chat_of(request).messages == [SYSTEM, ASK]
    assert request.answer.text == "One line."


def test_request_logs_of_all_apis(tmp_path: Path) -> None:
    chat = {"request": {"messages": [SYSTEM, ASK]}, "response": {"choices": [{"message": DONE}]}}
    anthropic = {
        "request": {
            "system": [{"type": "text", "text": "Be brief."}],
            "messages": [
                {"role": "user", "content": "What is in a.py?"},
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "1", "name": "cat", "input": {"path": "a.py"}}],
                },
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "1", "content": "x = 1\n"}],
                },
            ],
        },
        "response": {"role": "assistant", "content": [{"type": "text", "text": "One line."}]},
    }
    responses = {
        "request": {"instructions": "Be brief.", "input": "What is in a.py?"},
        "response": {
            "output": [{"type": "message", "content": [{"type": "output_text", "text": "One line."}]}]
        },
    }
    path = write_lines(tmp_path / "log.jsonl", [chat, anthropic, responses])
    requests = read_traces([path])
    assert [request.api for request in requests] == ["chat", "messages", "responses"]
    assert [request.answer.text for request in requests] == ["One line."] * 3
    first, second, third = (chat_of(request).messages for request in requests)
    assert first == third == [SYSTEM, ASK]
    assert [m["role"] for m in second] == ["system", "user", "assistant", "tool"]
    assert second[2]["tool_calls"][0]["function"] == {"name": "cat", "arguments": {"path": "a.py"}}


def test_lines_end_at_line_feeds_only(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    body = {"messages": [{"role": "user", "content": "a\u2028b\x0bc"}]}
    path.write_text(json.dumps(body, ensure_ascii=False) + "\n")
    assert messages_of(path) == [body["messages"]]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("not json\n", "no JSON"),
        ('{"a": 1}\n', "is it a request"),
        ("[]", "no request"),
        ('{"trajectory": []}', "history"),
    ],
)
def test_what_is_no_trace_is_one_line(tmp_path: Path, content: str, complaint: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(content)
    with pytest.raises(UsageError, match=complaint):
        read_traces([path])


def test_a_missing_trace_and_a_damaged_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no trace"):
        read_traces([tmp_path / "none"])
    cut = tmp_path / "cut.gz"
    cut.write_bytes(gzip.compress(b'{"messages": []}' * 100)[:20])
    with pytest.raises(UsageError, match="cannot be read"):
        read_traces([cut])
