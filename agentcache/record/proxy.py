"""The proxy itself: bytes in, the same bytes out; what was asked and answered goes to the trace."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from agentcache.record.stream import answer_of_stream
from agentcache.record.writer import TraceWriter
from agentcache.replay.answers import read_answer
from agentcache.replay.trace import Answer, api_of_path

_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]
_HOP = {
    "connection",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "host",
}
"""Headers of one connection; they are not passed on."""
_CREDENTIALS = ("authorization", "x-api-key", "api-key", "cookie", "proxy-authorization")


def make_app(upstream: str, writer: TraceWriter) -> Starlette:
    """The proxy in front of `upstream`, a URL with or without `/v1` behind it."""
    base = upstream.rstrip("/").removesuffix("/v1")
    # an agent may think for minutes, and an answer may take as long
    client = httpx.AsyncClient(
        timeout=httpx.Timeout(None, connect=10.0), limits=httpx.Limits(max_connections=None)
    )

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await client.aclose()

    async def passed_on(request: Request) -> Response:
        asked = _Asked(request, await request.body(), writer)
        query = f"?{request.url.query}" if request.url.query else ""
        try:
            sent = client.build_request(
                request.method,
                f"{base}{request.url.path}{query}",
                headers=_forwarded(request),
                content=asked.raw,
            )
            answered = await client.send(sent, stream=True)
        except httpx.HTTPError as error:
            reason = f"{base} does not answer: {error or type(error).__name__}"
            return JSONResponse({"error": {"message": f"agentcache record: {reason}"}}, status_code=502)
        response = StreamingResponse(asked.read(answered), answered.status_code)
        # as they came: a header may be there twice
        response.raw_headers = [pair for pair in answered.headers.raw if pair[0].decode().lower() not in _HOP]
        return response

    return Starlette(routes=[Route("/{path:path}", passed_on, methods=_METHODS)], lifespan=lifespan)


class _Asked:
    """One request on its way. raw: its body"""

    def __init__(self, request: Request, raw: bytes, writer: TraceWriter) -> None:
        self.raw = raw
        self._path = request.url.path
        self._headers = request.headers
        self._writer = writer
        self._at_s = writer.now()
        self._body = _body_to_record(request.method, self._path, raw)

    async def read(self, answered: httpx.Response) -> AsyncIterator[bytes]:
        """The answer's bytes as they come. Written down at its end, also when the client hangs up before."""
        seen: list[bytes] = []
        try:
            async for chunk in answered.aiter_raw():
                if self._body is not None:
                    seen.append(chunk)
                yield chunk
        except httpx.HTTPError as error:
            # the client sees the connection break, as it would without a proxy
            print(f"agentcache: {answered.url} broke off: {error or type(error).__name__}", file=sys.stderr)
            raise
        finally:
            if self._body is not None:
                self._write(self._body, b"".join(seen), answered)
            await answered.aclose()

    def _write(self, body: Mapping[str, Any], raw: bytes, answered: httpx.Response) -> None:
        is_stream = answered.headers.get("content-type", "").startswith("text/event-stream")
        answer = answer_of_stream(raw) if is_stream else _answer_of_json(raw)
        self._writer.write(
            self._at_s,
            self._path,
            body,
            answer,
            self._headers.get("user-agent", ""),
            _secrets(self._headers),
            answered.status_code,
        )


def _body_to_record(method: str, path: str, raw: bytes) -> dict[str, Any] | None:
    """The body of a request to one of the APIs; None for anything else, which only passes through."""
    if method != "POST" or api_of_path(path) is None:
        return None
    try:
        body = json.loads(raw)
    except ValueError:
        return None
    return body if isinstance(body, dict) else None


def _forwarded(request: Request) -> list[tuple[str, str]]:
    """The client's headers, less those of its connection; the answer is asked for uncompressed, to be read here."""
    dropped = _HOP | {"accept-encoding", "content-length"}
    kept = [(name, value) for name, value in request.headers.items() if name.lower() not in dropped]
    return [*kept, ("accept-encoding", "identity")]


def _secrets(headers: Mapping[str, str]) -> Iterator[str]:
    for name in _CREDENTIALS:
        value = headers.get(name, "")
        if value:
            yield value
            yield value.rpartition(" ")[2]  # a bearer token without the word before it


def _answer_of_json(raw: bytes) -> Answer:
    try:
        return read_answer(json.loads(raw))
    except ValueError:
        return Answer()
