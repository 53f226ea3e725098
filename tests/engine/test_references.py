"""References in messages, and text by reference, on the real engine: what is named is what is reused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest

from agentcache.context import Context, Streams
from agentcache.context.connect import view_of
from agentcache.errors import EngineError
from agentcache.indexer import Block, Index
from tests.engine.serving import SERVED, Server

pytestmark = pytest.mark.engine
REFERENCE = "heaps.py#merge"
QUESTION = "What does this do?\n{{agentcache:heaps.py#merge}}\nOne sentence."


@pytest.fixture
def merge(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[bytes, Block, Index]]:
    """The file, its block `merge`, and the index that the server reads."""
    monkeypatch.setenv("AGENTCACHE_HOME", str(server.repo.parent / "home"))
    with Index.open(server.repo) as index:
        data, blocks = index.snapshot("heaps.py")
        yield data, next(block for block in blocks if block.name == "merge"), index


def chat(content: str) -> dict[str, Any]:
    return {
        "model": SERVED,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 8,
        "temperature": 0.0,
    }


def test_a_named_block_is_reused_and_reads_as_if_it_were_pasted(
    server: Server, merge: tuple[bytes, Block, Index], model_folder: str
) -> None:
    data, block, _ = merge
    stream = Streams(model_folder, 4095).alone(data, block)
    assert stream is not None
    context = {"items": [REFERENCE, "shapes.py"], "token_budget": 2000, "order": "given"}
    before = server.client.post("/agentcache/context", context)
    assert [item["warm"] for item in before["items"]] == [False, False]
    server.store(stream.tokens.tolist(), *stream.cuts)
    after = server.client.post("/agentcache/context", context)
    assert [item["warm"] for item in after["items"]] == [True, False]
    text = data[block.start_byte : block.end_byte].decode()
    assert after["text"] == text + "def double(shape):\n    return 2 * shape.area()\n"
    assert after["items"][0]["blocks"] == [block.id]
    assert after["items"][0]["tokens"] == len(server.encode(text))

    pasted = chat(QUESTION.replace("{{agentcache:heaps.py#merge}}", text))
    tokens = [server.client.post("/tokenize", body)["tokens"] for body in (chat(QUESTION), pasted)]
    assert tokens[0] == tokens[1]
    requests = server.status()["totals"]["requests"]
    answer = server.client.post("/v1/chat/completions", chat(QUESTION))
    assert answer["usage"]["prompt_tokens"] == len(tokens[0])
    record = server.client.record_after(requests)
    assert record["reused_tokens"] > 0.8 * len(stream.tokens)
    again = server.client.post("/v1/chat/completions", pasted)
    assert again["choices"][0]["message"]["content"] == answer["choices"][0]["message"]["content"]

    with Context(
        server.repo, engine=view_of(server.client)
    ) as outside:  # the same knowledge, from another process
        assert outside.item(REFERENCE).warm
        assert not outside.item("shapes.py").warm


def test_an_answer_streams_as_ever(server: Server) -> None:
    with server.client.stream("/v1/chat/completions", chat(QUESTION) | {"stream": True}) as response:
        lines = [line for line in response.iter_lines() if line.startswith("data: ")]
    assert response.status_code == 200
    assert lines[-1] == "data: [DONE]"


def test_an_unknown_reference_is_each_api_s_own_400(server: Server) -> None:
    text = "see {{agentcache:src/deep/nothing.py#Name}}"
    client = openai.OpenAI(base_url=f"{server.client.url}/v1", api_key="unused")
    with pytest.raises(openai.BadRequestError, match=r"src/deep/nothing\.py#Name names no file"):
        client.chat.completions.create(model=SERVED, messages=[{"role": "user", "content": text}])
    with pytest.raises(openai.BadRequestError, match=r"src/deep/nothing\.py#Name names no file"):
        client.responses.create(model=SERVED, input=text)
    messages = anthropic.Anthropic(base_url=server.client.url, api_key="unused").messages
    with pytest.raises(anthropic.BadRequestError, match=r"src/deep/nothing\.py#Name names no file"):
        messages.create(model=SERVED, max_tokens=4, messages=[{"role": "user", "content": text}])
    with pytest.raises(anthropic.BadRequestError, match="invalid_request_error"):
        messages.create(model=SERVED, max_tokens=4, system=text, messages=[{"role": "user", "content": "x"}])


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"items": ["nothing.py"]}, "nothing.py names no file that is indexed in repo"),
        ({"items": ["shapes.py", "../../etc/passwd"]}, "../../etc/passwd leaves the indexed roots"),
        ({"items": ["/etc/passwd"]}, "/etc/passwd is absolute"),
        ({"items": ["shapes.py"], "order": "best"}, "order"),
        ({"items": ["shapes.py"], "token_budget": 0}, "token_budget"),
        ({"items": "shapes.py"}, "items"),
        ({"items": ["shapes.py"] * 1001}, "items"),
        ({}, "items"),
    ],
)
def test_a_bad_question_is_a_400_that_names_what_is_wrong(
    server: Server, body: dict[str, Any], says: str
) -> None:
    answer = httpx.post(f"{server.client.url}/agentcache/context", json=body)
    assert answer.status_code == 400
    assert says in answer.json()["error"]["message"]


def test_no_request_can_add_a_root(server: Server) -> None:
    httpx.put(f"{server.client.url}/agentcache/warm", json={"roots": ["/etc", str(server.repo.parent)]})
    for reference in ("/etc/passwd", "passwd", "etc:passwd", "repo/shapes.py", "home/index"):
        with pytest.raises(EngineError, match="answered 400"):
            server.client.post("/agentcache/context", {"items": [reference]})


def test_an_edit_that_is_not_indexed_yet_is_said_and_then_seen(
    server: Server, merge: tuple[bytes, Block, Index]
) -> None:
    _, _, index = merge
    edited = server.repo / "shapes.py"
    before = edited.read_bytes()
    edited.write_text("def triple(shape):\n    return 3 * shape.area()\n")
    try:
        with pytest.raises(EngineError, match=r"shapes\.py has changed since it was indexed"):
            server.client.post("/v1/chat/completions", chat("{{agentcache:shapes.py}}"))
        index.refresh(["shapes.py"])
        assert "triple" in server.client.post("/agentcache/context", {"items": ["shapes.py"]})["text"]
    finally:
        edited.write_bytes(before)
        index.refresh(["shapes.py"])
