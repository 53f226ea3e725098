"""Keys and limits on a small application, in all their cases; `test_operation.py` sees them on a real server."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from agentcache.plugin.access import AcceptXApiKey, BodyLimit, KeyGuard

LIMIT = 1000


async def _echo(request: Request) -> PlainTextResponse:
    body = await request.body()
    return PlainTextResponse(f"{len(body)} {request.headers.get('authorization', '')}")


def _client(*keys: str) -> TestClient:
    app = Starlette(routes=[Route("/{path:path}", _echo, methods=["GET", "POST", "PUT", "OPTIONS"])])
    app.add_middleware(BodyLimit, max_bytes=LIMIT)
    app.add_middleware(KeyGuard, keys=list(keys))
    app.add_middleware(AcceptXApiKey)
    return TestClient(app)


def _basic(password: str) -> str:
    return "Basic " + base64.b64encode(f"anybody:{password}".encode()).decode()


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer right"},
        {"Authorization": "bearer other"},
        {"x-api-key": "right"},
        {"Authorization": _basic("right")},
    ],
)
def test_any_of_the_keys_opens_our_routes(headers: dict[str, str]) -> None:
    assert _client("right", "other").get("/agentcache/status", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer"},
        {"Authorization": "right"},
        {"x-api-key": ""},
        {"Authorization": _basic("wrong")},
        {"Authorization": "Basic !!!"},
        {"Authorization": "Basic " + base64.b64encode(b"\xff\xfe").decode()},
    ],
)
@pytest.mark.parametrize("path", ["/agentcache", "/agentcache/", "/agentcache/status"])
def test_nothing_else_does(headers: dict[str, str], path: str) -> None:
    answer = _client("right").get(path, headers=headers)
    assert answer.status_code == 401
    assert "right" not in answer.text
    assert answer.headers["www-authenticate"].startswith("Basic"), "a browser asks for it"


def test_other_paths_and_preflights_are_vllms_own_business() -> None:
    client = _client("right")
    assert client.get("/health").status_code == 200
    assert client.get("/agentcached").status_code == 200
    assert client.options("/agentcache/status").status_code == 200


def test_without_a_key_everybody_may() -> None:
    assert _client().get("/agentcache/status").status_code == 200


def test_a_key_in_anthropics_header_becomes_a_bearer_token() -> None:
    client = _client()
    assert client.get("/v1/models", headers={"x-api-key": "k"}).text == "0 Bearer k"
    both = {"x-api-key": "k", "Authorization": "Bearer mine"}
    assert client.get("/v1/models", headers=both).text == "0 Bearer mine"


@pytest.mark.parametrize("size", [0, LIMIT - 1, LIMIT])
def test_a_body_up_to_the_limit_arrives_whole(size: int) -> None:
    def pieces() -> Iterator[bytes]:
        for start in range(0, size, 300):
            yield b"x" * min(300, size - start)

    client = _client()
    assert client.post("/v1/x", content=b"x" * size).text.split()[0] == str(size)
    assert client.post("/v1/x", content=pieces()).text.split()[0] == str(size), "without a length"


@pytest.mark.parametrize("size", [LIMIT + 1, LIMIT * 3, LIMIT * 50])
def test_a_larger_one_is_refused(size: int) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(size // 300 + 1):
            yield b"x" * 300

    client = _client()
    for answer in (client.post("/v1/x", content=b"x" * size), client.post("/v1/x", content=pieces())):
        assert answer.status_code == 413
        assert str(LIMIT) in answer.json()["error"]["message"]
