"""References in chat messages: the middleware in front of an application that says what reached it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from agentcache.context.inline import MARKER, TEXT_FIELDS, Inliner
from agentcache.indexer import Index
from agentcache.plugin import inline
from agentcache.plugin.inline import InlineReferences
from agentcache.plugin.navigation import Navigation
from agentcache.settings import EngineSettings
from tests.context.sources import MAIN, SHAPES, write

DOUBLE = "def double(shape):\n    return 2 * shape.area()\n"
REFERENCE = "{{agentcache:shapes.py#double}}"
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"


async def _echo(request: Request) -> Response:
    """The body as it came, and the headers that tell its length; in two pieces if asked to stream."""
    body = await request.body()
    told = {
        name: request.headers[name]
        for name in ("content-length", "transfer-encoding")
        if name in request.headers
    }
    headers = {"seen": json.dumps(told)}
    if b'"stream": true' in body:
        pieces = (body[: len(body) // 2], body[len(body) // 2 :])

        async def streamed() -> Any:
            for piece in pieces:
                yield piece

        return StreamingResponse(streamed(), headers=headers)
    return Response(body, headers=headers)


def _client(*roots: Path) -> Iterator[TestClient]:
    app = Starlette(
        routes=[Route(path, _echo, methods=["POST"]) for path in (*TEXT_FIELDS, "/v1/completions")]
    )
    app.add_middleware(InlineReferences)
    navigation = Navigation(EngineSettings(roots=tuple(map(str, roots))))
    app.state.agentcache_navigation = navigation
    with TestClient(app) as client:
        yield client
    navigation.close()


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    root = write(
        tmp_path_factory.mktemp("inline") / "repo",
        **{"nested.txt": f"see {REFERENCE}\n", "ünï.py": "x = 'ü'\n"},
    )
    running = _client(root)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AGENTCACHE_HOME", str(root.parent / "home"))
        with Index.open(root) as index:
            index.update()
        client = next(running)
        assert client.post(CHAT, json=body_of(CHAT, REFERENCE)).status_code == 200  # the index is open now
    yield client
    next(running, None)


def body_of(api: str, text: str) -> dict[str, Any]:
    """A request with `text` in the user's message."""
    if api == RESPONSES:
        return {"model": "m", "input": text}
    return {"model": "m", "messages": [{"role": "user", "content": text}]}


def text_in(body: dict[str, Any]) -> str:
    text: str = body["input"] if "input" in body else body["messages"][0]["content"]
    return text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", TEXT_FIELDS)
def test_a_reference_reaches_every_api_as_text(client: TestClient, api: str, stream: bool) -> None:
    sent = {"input": f"a {REFERENCE}b"} if "responses" in api else body_of(api, f"a {REFERENCE}b")
    answer = client.post(api, json=sent | {"stream": stream})
    assert answer.status_code == 200
    assert text_in(answer.json()) == f"a {DOUBLE}b"
    assert json.loads(answer.headers["seen"]) == {"content-length": str(len(answer.content))}


def test_every_place_where_text_may_stand_in_chat_completions(client: TestClient) -> None:
    image = {"type": "image_url", "image_url": {"url": REFERENCE}}
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": REFERENCE}}
    sent = {
        "messages": [
            {"role": "system", "content": REFERENCE},
            {"role": "developer", "content": REFERENCE},
            {"role": "user", "name": REFERENCE, "content": [{"type": "text", "text": REFERENCE}, image]},
            {"role": "assistant", "content": REFERENCE, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": REFERENCE},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "description": REFERENCE}}],
    }
    got = client.post(CHAT, json=sent).json()
    assert [message["content"] for message in got["messages"][:2]] == [DOUBLE, DOUBLE]
    assert got["messages"][2]["content"] == [{"type": "text", "text": DOUBLE}, image]
    assert got["messages"][2]["name"] == REFERENCE
    assert got["messages"][3] == sent["messages"][3]  # what the model wrote
    assert got["messages"][4]["content"] == DOUBLE
    assert got["tools"] == sent["tools"]


def test_every_place_where_text_may_stand_in_responses(client: TestClient) -> None:
    sent = {
        "instructions": REFERENCE,
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": REFERENCE}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": REFERENCE}]},
            {"type": "function_call", "name": "f", "call_id": "1", "arguments": REFERENCE},
            {"type": "function_call_output", "call_id": "1", "output": REFERENCE},
            {
                "type": "function_call_output",
                "call_id": "2",
                "output": [{"type": "input_text", "text": REFERENCE}],
            },
        ],
    }
    got = client.post(RESPONSES, json=sent).json()
    assert got["instructions"] == DOUBLE
    assert got["input"][0]["content"][0]["text"] == DOUBLE
    assert got["input"][1:3] == sent["input"][1:3]
    assert got["input"][3]["output"] == DOUBLE
    assert got["input"][4]["output"][0]["text"] == DOUBLE


def test_every_place_where_text_may_stand_in_messages(client: TestClient) -> None:
    result = {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": REFERENCE}]}
    plain = {"type": "tool_result", "tool_use_id": "2", "content": REFERENCE}
    call = {"type": "tool_use", "id": "1", "name": "f", "input": {"x": REFERENCE}}
    sent = {
        "system": [{"type": "text", "text": REFERENCE, "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": REFERENCE},
            {"role": "assistant", "content": [{"type": "text", "text": REFERENCE}, call]},
            {"role": "user", "content": [result, plain, {"type": "text", "text": REFERENCE}]},
        ],
    }
    got = client.post(MESSAGES, json=sent).json()
    assert got["system"][0] == {"type": "text", "text": DOUBLE, "cache_control": {"type": "ephemeral"}}
    assert got["messages"][0]["content"] == DOUBLE
    assert got["messages"][1] == sent["messages"][1]
    first, second, third = got["messages"][2]["content"]
    assert first["content"][0]["text"] == second["content"] == third["text"] == DOUBLE


@pytest.mark.parametrize(
    ("text", "reaches"),
    [
        (r"\{{agentcache:shapes.py#double}}", "{{agentcache:shapes.py#double}}"),
        (r"\{{agentcache:", "{{agentcache:"),
        (r"\\{{agentcache:shapes.py#double}}", "\\" + DOUBLE),
        (r"\\\{{agentcache:nothing}}", r"\{{agentcache:nothing}}"),
        ("{{{agentcache:shapes.py#double}}}", "{" + DOUBLE + "}"),
        (f"{REFERENCE}{REFERENCE}", DOUBLE * 2),
        ("{{agentcache:app/main.py}}{{agentcache:shapes.py}}", MAIN + SHAPES),
        ("{{agentcache:nested.txt}}", f"see {REFERENCE}\n"),  # what was put in is not looked at again
        ("{{agentcache:ünï.py}}", "x = 'ü'\n"),
        ("{{agentcache shapes.py}} {{ agentcache:x }}", "{{agentcache shapes.py}} {{ agentcache:x }}"),
    ],
)
def test_escapes_neighbours_and_no_recursion(client: TestClient, text: str, reaches: str) -> None:
    assert text_in(client.post(CHAT, json=body_of(CHAT, text)).json()) == reaches


@pytest.mark.parametrize(
    ("reference", "named"),
    [
        ("nothing.py", "nothing.py names no file"),
        ("shapes.py#nothing", "shapes.py#nothing: nothing of that name"),
        ("shapes.py#area", "shapes.py#area is ambiguous"),
        ("../secret.txt", "../secret.txt leaves the indexed roots"),
        ("/etc/passwd", "/etc/passwd is absolute"),
        ("", "a reference is empty"),
        ("x\0", "NUL"),
    ],
)
@pytest.mark.parametrize("api", [CHAT, RESPONSES, MESSAGES])
def test_an_unknown_reference_is_a_400_in_the_api_s_own_shape_that_names_it(
    client: TestClient, api: str, reference: str, named: str
) -> None:
    answer = client.post(api, json=body_of(api, f"{{{{agentcache:{reference}}}}}"))
    assert answer.status_code == 400
    body = answer.json()
    if api == MESSAGES:
        assert body["type"] == "error"
        assert body["error"]["type"] == "invalid_request_error"
    else:
        assert body["error"]["code"] == 400
        assert body["error"]["type"] == "BadRequestError"
    assert named in body["error"]["message"]
    assert "\n" not in body["error"]["message"]


def test_a_reference_that_is_not_closed_says_so(client: TestClient) -> None:
    answer = client.post(CHAT, json=body_of(CHAT, "{{agentcache:shapes.py}\n}} more"))
    assert answer.status_code == 400
    assert "is not closed" in answer.json()["error"]["message"]


def test_what_a_tool_returned_is_data(client: TestClient) -> None:
    """An agent that reads a page about references must not be stuck with a request that it cannot mend."""
    page = rf"write {{{{agentcache:path#Name}}}}, \{REFERENCE} or {{{{agentcache: and {REFERENCE}"
    sent = {"messages": [{"role": "tool", "tool_call_id": "1", "content": page}]}
    assert text_in(client.post(CHAT, json=sent).json()) == page[: -len(REFERENCE)] + DOUBLE


@pytest.mark.parametrize("size", [1, 7, 64])
def test_a_body_in_pieces(client: TestClient, size: int) -> None:
    raw = json.dumps(body_of(CHAT, REFERENCE)).encode()
    pieces = (raw[at : at + size] for at in range(0, len(raw), size))
    answer = client.post(CHAT, content=pieces)
    assert text_in(answer.json()) == DOUBLE
    assert json.loads(answer.headers["seen"]) == {"content-length": str(len(answer.content))}


@pytest.mark.parametrize(
    ("path", "raw"),
    [
        ("/v1/completions", json.dumps({"prompt": REFERENCE}).encode()),
        (CHAT, b'{ "messages" : [] , "spaced": true}'),
        (CHAT, b"not json"),
        (CHAT, b"not json {{agentcache:shapes.py}}"),
        (CHAT, b"[" * 100_000 + b"{{agentcache:shapes.py}}"),
        (CHAT, b'["{{agentcache:shapes.py}}"]'),
        (CHAT, b""),
        (CHAT, gzip.compress(json.dumps(body_of(CHAT, REFERENCE)).encode(), mtime=0)),
    ],
)
def test_everything_else_passes_as_it_came(client: TestClient, path: str, raw: bytes) -> None:
    assert client.post(path, content=raw).content == raw


def test_odd_but_valid_json_survives(client: TestClient) -> None:
    message = rb'{"role": "user", "content": "\ud800 \u00fc {{agentcache:shapes.py#double}}"}'
    raw = b'{"messages": [' + message + b'], "n": 1e400, "b": 123456789012345678901}'
    got = json.loads(client.post(CHAT, content=raw).content)
    assert text_in(got) == f"\ud800 ü {DOUBLE}"
    assert got["b"] == 123456789012345678901


def test_too_much_is_refused(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = client.post(CHAT, json=body_of(CHAT, REFERENCE * 1001))
    assert answer.status_code == 400
    assert "more than 1000 references" in answer.json()["error"]["message"]
    monkeypatch.setattr(inline, "MAX_BODY_BYTES", 1000)
    answer = client.post(CHAT, json=body_of(CHAT, REFERENCE + "x" * 1000))
    assert answer.status_code == 400
    assert "at most" in answer.json()["error"]["message"]
    assert client.post(CHAT, json=body_of(CHAT, "x" * 1000)).status_code == 200


def test_a_server_without_roots_says_so() -> None:
    for client in _client():
        answer = client.post(CHAT, json=body_of(CHAT, REFERENCE))
        assert answer.status_code == 400
        assert "agentcache serve PATH" in answer.json()["error"]["message"]
        assert client.post(CHAT, json=body_of(CHAT, "hello")).status_code == 200


def test_roots_that_are_gone_are_the_server_s_fault(tmp_path: Path) -> None:
    for client in _client(tmp_path / "gone"):
        for api in (CHAT, MESSAGES):
            answer = client.post(api, json=body_of(api, REFERENCE))
            assert answer.status_code == 503
            assert answer.headers["retry-after"] == "1"


@given(st.text(alphabet="{}\\agentcache:x\n ", max_size=60))
def test_text_without_a_marker_is_never_touched(text: str) -> None:
    def resolve(reference: str) -> str:
        return f"<{reference}>"

    if MARKER.decode() not in text:
        assert Inliner(resolve).text(text) == text
    # Written with a backslash in front of each reference, any text arrives as it is.
    escaped = text.replace("\\", "").replace("{{agentcache:", "\\{{agentcache:")
    assert Inliner(resolve).text(escaped) == text.replace("\\", "")
