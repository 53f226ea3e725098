"""ASGI middleware: references in chat messages become text before the model's APIs see the request.

The body is looked at as bytes; only one that holds a reference is parsed and written again. All others, and all other
paths, pass as they came. A compressed body passes, too: vLLM reads none, and says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse

from agentcache.context.inline import MARKER, TEXT_FIELDS, Inliner
from agentcache.errors import AgentCacheError, UsageError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from agentcache.plugin.navigation import Navigation

MAX_BODY_BYTES = 32 << 20
"""Of a request that holds references: it is parsed twice."""


class InlineReferences:
    """Replaces references in requests to chat completions, Responses and Messages, or answers why not.

    The server's `state.agentcache_navigation` knows the roots.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
        if scope["type"] != "http" or scope["method"] != "POST" or path not in TEXT_FIELDS:
            await self._app(scope, receive, send)
            return
        messages, has_marker = await _read(receive)
        if not has_marker:
            await self._app(scope, _replay(messages, receive), send)
            return
        body = b"".join(message.get("body", b"") for message in messages)
        navigation: Navigation = scope["app"].state.agentcache_navigation
        try:
            if len(body) > MAX_BODY_BYTES:
                raise UsageError(f"a request with references is at most {MAX_BODY_BYTES >> 20} MiB")
            inlined = await navigation.run(lambda resolve: _inlined(path, body, resolve))
        except AgentCacheError as error:
            await _refusal(path, error)(scope, receive, send)
            return
        if inlined is None:
            await self._app(scope, _replay(messages, receive), send)
            return
        await self._app(
            _resized(scope, len(inlined)),
            _replay([{"type": "http.request", "body": inlined, "more_body": False}], receive),
            send,
        )


def _inlined(path: str, body: bytes, resolve: Callable[[str], str]) -> bytes | None:
    """The body with its references replaced; None if it is no JSON object, which vLLM says better."""
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(parsed, dict):
        return None
    return json.dumps(Inliner(resolve).body(path, parsed)).encode()


async def _read(receive: Receive) -> tuple[list[Message], bool]:
    """The messages of a request's body, and whether a reference begins in it, over the messages' bounds."""
    messages: list[Message] = []
    has_marker, end = False, b""
    while True:
        message = await receive()
        messages.append(message)
        piece = message.get("body", b"")
        has_marker = has_marker or MARKER in end + piece
        end = (end + piece)[-len(MARKER) + 1 :]
        if message["type"] != "http.request" or not message.get("more_body"):
            return messages, has_marker


def _replay(messages: list[Message], receive: Receive) -> Receive:
    """`receive` that gives `messages` first, and then what comes: the news that the client has gone."""
    waiting = iter(messages)

    async def replay() -> Message:
        message = next(waiting, None)
        return message if message is not None else await receive()

    return replay


def _resized(scope: Scope, length: int) -> Scope:
    """The request's scope for a body of `length` bytes, in one piece."""
    kept = [
        (name, value)
        for name, value in scope["headers"]
        if name.lower() not in (b"content-length", b"transfer-encoding")
    ]
    return {**scope, "headers": [*kept, (b"content-length", str(length).encode())]}


def _refusal(path: str, error: AgentCacheError) -> JSONResponse:
    """The error as the API that was asked would say it: 400, or 503 if it is not the request's fault."""
    is_theirs = isinstance(error, UsageError)
    status = 400 if is_theirs else 503
    content: dict[str, Any]
    if path.startswith("/v1/messages"):
        kind = "invalid_request_error" if is_theirs else "api_error"
        content = {"type": "error", "error": {"type": kind, "message": str(error)}}
    else:
        kind = "BadRequestError" if is_theirs else "ServiceUnavailableError"
        param = TEXT_FIELDS[path][-1] if is_theirs else None
        content = {"error": {"message": str(error), "type": kind, "param": param, "code": status}}
    return JSONResponse(content, status, headers={} if is_theirs else {"Retry-After": "1"})
