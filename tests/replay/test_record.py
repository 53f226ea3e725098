"""The recording proxy: official SDKs through it, secrets out of it, faults in one line, a whole trace at the end."""

from __future__ import annotations

import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentcache.errors import UsageError
from agentcache.record.stream import answer_of_stream
from agentcache.record.writer import TraceWriter, without_secrets
from agentcache.replay.formats import read_traces
from agentcache.replay.trace import Answer, ToolCall
from tests.engine.serving import SERVED, Server

KEY = "sk-test-0123456789"
Proxy = Callable[[str], tuple[str, Path, subprocess.Popen[str]]]


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[Proxy]:
    """Starts `agentcache record` in front of an upstream: its URL, the trace's path, the process."""
    started: list[subprocess.Popen[str]] = []

    def start(upstream: str) -> tuple[str, Path, subprocess.Popen[str]]:
        out = tmp_path / "trace.jsonl"
        arguments = ["record", "--upstream", upstream, "--port", "0", "--out", str(out)]
        process = subprocess.Popen(
            [sys.executable, "-m", "agentcache.cli", *arguments],
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ,
        )
        started.append(process)
        assert process.stderr is not None
        line = process.stderr.readline()
        assert line.startswith("recording: http://"), line
        url = line.split()[1]
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", int(url.rsplit(":", 1)[1]))) == 0:
                    return url, out, process
            time.sleep(0.05)
        raise AssertionError("the proxy does not listen")

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def ended(process: subprocess.Popen[str]) -> str:
    """Ctrl-C, and what it said then."""
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0
    assert process.stderr is not None
    return process.stderr.read()


class Upstream(http.server.BaseHTTPRequestHandler):
    """Answers in pieces, slowly where the prompt asks for it; says what it got."""

    protocol_version = "HTTP/1.1"
    got: list[dict[str, str]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        type(self).got.append(dict(self.headers.items()))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        if b"break" in body:
            self.send_header("content-length", "100000")
        self.send_header("connection", "close")
        self.send_header("set-cookie", "a=1")
        self.send_header("set-cookie", "b=2")
        self.end_headers()
        for number in range(3):
            event = {"choices": [{"index": 0, "delta": {"content": f"part {number} "}}]}
            self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
            self.wfile.flush()
            if b"slowly" in body:
                time.sleep(0.3 if number else 0.0)
            if b"forever" in body and number == 1:
                time.sleep(30)
            if b"break" in body and number == 1:
                self.connection.shutdown(socket.SHUT_RDWR)
                return
        if b"cut" not in body:
            self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


@pytest.fixture
def upstream() -> Iterator[tuple[str, list[dict[str, str]]]]:
    Upstream.got = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", Upstream.got
    server.shutdown()
    server.server_close()


def ask(url: str, text: str) -> httpx.Response:
    body = {
        "model": "m",
        "stream": True,
        "api_key": KEY,
        "messages": [{"role": "user", "content": f"{text} {KEY}"}],
    }
    headers = {"authorization": f"Bearer {KEY}", "x-api-key": KEY, "cookie": KEY, "user-agent": "tester/1"}
    return httpx.post(f"{url}/v1/chat/completions?key={KEY}", json=body, headers=headers, timeout=60)


def test_bytes_pass_untouched_and_secrets_stay_out(
    proxy: Proxy, upstream: tuple[str, list[dict[str, str]]]
) -> None:
    direct = ask(upstream[0], "hello")
    url, out, process = proxy(upstream[0] + "/v1")
    through = ask(url, "hello")
    assert through.content == direct.content
    assert through.headers["content-type"] == direct.headers["content-type"]
    assert through.headers.get_list("set-cookie") == ["a=1", "b=2"]
    assert upstream[1][1]["authorization"] == f"Bearer {KEY}"
    assert "1 requests written" in ended(process)
    text = out.read_text()
    assert KEY not in text
    assert "Bearer" not in text
    (request,) = read_traces([out])
    assert request.answer.text == "part 0 part 1 part 2 "
    record = json.loads(text)
    assert record["user_agent"] == "tester/1"
    assert record["body"]["messages"][0]["content"] == "hello [removed]"


def test_a_stream_is_not_held_back(proxy: Proxy, upstream: tuple[str, list[dict[str, str]]]) -> None:
    url, _, process = proxy(upstream[0])
    body = {"messages": [{"role": "user", "content": "slowly"}]}
    arrived = []
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60) as answer:
        for chunk in answer.iter_raw():
            arrived.append((time.monotonic(), chunk))
    assert arrived[-1][0] - arrived[0][0] > 0.25  # the first piece came while the last was not made yet
    ended(process)


def test_an_interrupt_keeps_what_came(proxy: Proxy, upstream: tuple[str, list[dict[str, str]]]) -> None:
    """Also of an answer that is still on its way."""
    url, out, process = proxy(upstream[0])
    ask(url, "first")
    with httpx.stream(
        "POST",
        f"{url}/v1/chat/completions",
        json={"messages": [{"role": "user", "content": "forever"}]},
        timeout=60,
    ) as answer:
        pieces = answer.iter_raw()
        while b"part 1" not in next(pieces):
            pass
        said = ended(process)
    assert "2 requests written" in said
    assert [request.answer.text for request in read_traces([out])] == [
        "part 0 part 1 part 2 ",
        "part 0 part 1 ",
    ]


def test_a_client_that_hangs_up_and_an_upstream_that_breaks_off(
    proxy: Proxy, upstream: tuple[str, list[dict[str, str]]]
) -> None:
    url, out, process = proxy(upstream[0])
    path = f"{url}/v1/chat/completions"
    with httpx.stream(
        "POST", path, json={"messages": [{"role": "user", "content": "slowly"}]}, timeout=60
    ) as answer:
        next(answer.iter_raw())
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.post(path, json={"messages": [{"role": "user", "content": "break"}]}, timeout=60)
    said = ended(process)
    assert "broke off" in said
    assert "Traceback" not in said
    answers = sorted(request.answer.text for request in read_traces([out]))
    assert len(answers) == 2
    assert all(text.startswith("part 0") for text in answers)


def test_an_upstream_that_is_down_is_said_in_one_line(proxy: Proxy) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url, out, process = proxy(f"http://127.0.0.1:{port}")
    answer = ask(url, "hello")
    assert answer.status_code == 502
    message = answer.json()["error"]["message"]
    assert "does not answer" in message
    assert "\n" not in message
    assert "0 requests written" in ended(process)
    assert out.read_text() == ""


@pytest.mark.engine
def test_official_sdks_stream_through_it(proxy: Proxy, server: Server) -> None:
    from anthropic import Anthropic
    from openai import OpenAI

    url, out, process = proxy(server.client.url)
    with OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
        stream = client.chat.completions.create(
            model=SERVED,
            messages=[{"role": "user", "content": "Say hello."}],
            max_tokens=8,
            stream=True,
            temperature=0,
        )
        chat = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
        events = client.responses.create(
            model=SERVED, input="Say hello.", max_output_tokens=8, stream=True, temperature=0
        )
        responses = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        whole = client.chat.completions.create(
            model=SERVED, messages=[{"role": "user", "content": "Say hello."}], max_tokens=8, temperature=0
        )
    with (
        Anthropic(base_url=url, api_key=KEY, max_retries=0) as anthropic,
        anthropic.messages.stream(
            model=SERVED, messages=[{"role": "user", "content": "Say hello."}], max_tokens=8
        ) as sent,
    ):
        messages = "".join(sent.text_stream)
    assert chat
    ended(process)
    assert KEY not in out.read_text()
    requests = read_traces([out])
    assert [request.api for request in requests] == ["chat", "responses", "chat", "messages"]
    assert [request.answer.text for request in requests] == [
        chat,
        responses,
        whole.choices[0].message.content,
        messages,
    ]


def sse(*events: Any) -> bytes:
    return b"".join(b"event: x\ndata: " + json.dumps(event).encode() + b"\n\n" for event in events)


def test_tool_calls_in_streams_of_every_api() -> None:
    calls = (
        [{"index": 0, "function": {"name": "cat", "arguments": '{"p'}}],
        [{"index": 0, "function": {"arguments": '": 1}'}}],
    )
    chat = sse(*({"choices": [{"index": 0, "delta": {"tool_calls": call}}]} for call in calls))
    messages = sse(
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "I look."}},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "name": "cat"}},
        {
            "type": "content_block_delta",
            "index": 1,
            "delta": {"type": "input_json_delta", "partial_json": '{"p": 1}'},
        },
    )
    item = {"type": "function_call", "name": "cat", "arguments": '{"p": 1}'}
    responses = sse({"type": "response.completed", "response": {"output": [item]}})
    call = ToolCall("cat", '{"p": 1}')
    assert answer_of_stream(chat + b"data: [DONE]\n\n") == Answer("", (call,))
    assert answer_of_stream(messages) == Answer("I look.", (call,))
    assert answer_of_stream(responses) == Answer("", (call,))
    assert answer_of_stream(messages[: len(messages) // 2]).text == "I look."


def test_secrets_are_found_anywhere_but_schemas_stay() -> None:
    schema = {"properties": {"api_key": {"type": "string"}}}
    body = {"tools": [schema], "metadata": {"api_key": "abc"}, "input": ["the key is sk-12345678"]}
    cleaned = without_secrets(body, ["sk-12345678"])
    assert cleaned == {
        "tools": [schema],
        "metadata": {"api_key": "[removed]"},
        "input": ["the key is [removed]"],
    }


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("precious")
    with pytest.raises(UsageError, match="exists already"):
        TraceWriter(path)
    with pytest.raises(UsageError, match="cannot be written"):
        TraceWriter(tmp_path / "none" / "t.jsonl")
