"""Who may ask, and how much at once: ASGI middleware for what vLLM's own does not cover.

vLLM checks its key on `/v1` and a few more prefixes, and only as a bearer token. Here the same key guards
`/agentcache`, is taken as `x-api-key`, as Anthropic's SDK sends it, and a request body has a limit.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers
from starlette.responses import JSONResponse

if TYPE_CHECKING:
    from argparse import Namespace

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

GUARDED = "/agentcache"
_DISCARDED = 4
"""A body up to so many times the limit is read and thrown away, so that its sender sees why; then we hang up."""


def keys_of(args: Namespace, environment_key: str | None) -> list[str]:
    """The keys that vLLM itself takes: those of its command line, else its environment's."""
    return [key for key in (args.api_key or [environment_key]) if key]


class KeyGuard:
    """401 to whoever asks for `/agentcache...` without one of `keys`: bearer token, `x-api-key`, or, so that a browser
    can ask for it, the password of basic authentication. Without keys everybody may."""

    def __init__(self, app: App, keys: Sequence[str]) -> None:
        self._app = app
        self._digests = [_digest(key) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._digests and _is_guarded(scope) and not self._knows(Headers(scope=scope)):
            response = JSONResponse(
                {
                    "error": {
                        "message": "this server asks for its API key",
                        "type": "unauthorized",
                        "code": 401,
                    }
                },
                status_code=401,
                headers={"WWW-Authenticate": 'Basic realm="agentcache: the API key is the password"'},
            )
            await response(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _knows(self, headers: Headers) -> bool:
        given = _digest(_key_in(headers))
        # digests are compared: how long that takes tells nothing of a key
        return any(secrets.compare_digest(given, known) for known in self._digests)


class AcceptXApiKey:
    """Passes a key that came as `x-api-key` on as the bearer token that vLLM wants."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            key = headers.get("x-api-key")
            if key is not None and "authorization" not in headers:
                added = (b"authorization", f"Bearer {key}".encode("latin-1"))
                scope = {**scope, "headers": [*scope["headers"], added]}
        await self._app(scope, receive, send)


class BodyLimit:
    """413 to a body of more than `max_bytes`; without a length in its header it is read up to there first."""

    def __init__(self, app: App, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        length = headers.get("content-length", "")
        if length.isdigit():
            if int(length) <= self._max_bytes:
                await self._app(scope, receive, send)
            else:
                await self._discard(receive, 0)
                await self._refuse(scope, receive, send)
        elif "transfer-encoding" not in headers:
            await self._app(scope, receive, send)
        else:
            await self._read_first(scope, receive, send)

    async def _read_first(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A body of unknown length: passed on once all of it is here."""
        messages: list[MutableMapping[str, Any]] = []
        total, more = 0, True
        while more and total <= self._max_bytes:
            messages.append(await receive())
            total += len(messages[-1].get("body", b""))
            more = _is_more(messages[-1])
        if total <= self._max_bytes:
            await self._app(scope, _again(messages, receive), send)
            return
        if more:
            await self._discard(receive, total)
        await self._refuse(scope, receive, send)

    async def _discard(self, receive: Receive, taken: int) -> None:
        """Take the rest of a body, `taken` bytes of which are here, so that its sender reads our answer."""
        while taken <= self._max_bytes * _DISCARDED:
            message = await receive()
            taken += len(message.get("body", b""))
            if not _is_more(message):
                return

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        text = f"the request body is larger than {self._max_bytes} bytes (agentcache serve --max-body)"
        body = {"error": {"message": text, "type": "request_too_large", "param": None, "code": 413}}
        await JSONResponse(body, status_code=413, headers={"Connection": "close"})(scope, receive, send)


def _is_more(message: MutableMapping[str, Any]) -> bool:
    return message["type"] == "http.request" and bool(message.get("more_body"))


def _again(messages: list[MutableMapping[str, Any]], receive: Receive) -> Receive:
    """`receive` that gives what was read first."""
    waiting = iter(messages)

    async def again() -> MutableMapping[str, Any]:
        message = next(waiting, None)
        return message if message is not None else await receive()

    return again


def _is_guarded(scope: Scope) -> bool:
    if scope["type"] not in ("http", "websocket") or scope.get("method") == "OPTIONS":
        return False
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    return bool(path == GUARDED or path.startswith(f"{GUARDED}/"))


def _key_in(headers: Headers) -> str:
    """The key that a request carries, "" for none."""
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return value
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return ""
    return headers.get("x-api-key", "")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
