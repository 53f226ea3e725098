"""Running the MCP server over stdio or HTTP, with its index kept fresh, until its client or Ctrl-C ends it."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
from starlette.datastructures import Headers
from starlette.responses import JSONResponse

from agentcache.context import Context
from agentcache.context.connect import view_of
from agentcache.context.roots import Roots
from agentcache.engine_client import EngineClient
from agentcache.errors import UsageError
from agentcache.indexer import Watcher
from agentcache.listening import listen
from agentcache.mcp.server import make_server

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

LOOPBACK = ("127.0.0.1", "localhost", "::1")
PATH = "/mcp"
_ENGINE_TIMEOUT_S = 10.0
_FIRST_LOOK_S = 50.0
"""How long a question waits for the first look at all files; then it is answered from what is indexed so far."""


@dataclass(frozen=True, slots=True)
class McpOptions:
    """What to answer from, and how.

    roots: folders; engine_url: asked what is warm, "" for none; engine_key: what it wants for that
    model: whose tokenizer counts; "" is the engine's, or an estimate without one
    """

    roots: tuple[Path, ...]
    engine_url: str = ""
    engine_key: str = ""
    model: str = ""


def run_stdio(options: McpOptions) -> None:
    """Answer on stdin and stdout until stdin ends. Raises AgentCacheError before it begins."""
    with _context(options) as (context, wait_ready):
        anyio.run(make_server(context, wait_ready).run_stdio_async)


def run_http(options: McpOptions, host: str, port: int, key: str, on_ready: Callable[[str], None]) -> None:
    """Answer streamable HTTP on `/mcp` until interrupted. key: the bearer token that clients must send, "" for none.

    Raises UsageError for an address that is not loopback without a key, or a port that is taken.
    """
    import uvicorn

    if host not in LOOPBACK and not key:
        raise UsageError(f"refusing to listen on {host} without a key: set AGENTCACHE_MCP_KEY or give --key")
    listening = listen(host, port)
    with closing(listening), _context(options) as (context, wait_ready):
        app: ASGIApp = make_server(context, wait_ready).streamable_http_app(
            streamable_http_path=PATH, host=host
        )
        config = uvicorn.Config(
            _KeyGuard(app, key) if key else app,
            log_level="critical",
            timeout_graceful_shutdown=2,
            lifespan="on",
        )
        shown_host = f"[{host}]" if ":" in host else host
        on_ready(f"http://{shown_host}:{listening.getsockname()[1]}{PATH}")
        with suppress(KeyboardInterrupt):  # uvicorn has shut down and passes the signal on
            uvicorn.Server(config).run(sockets=[listening])


@contextmanager
def _context(options: McpOptions) -> Iterator[tuple[Context, Callable[[], None]]]:
    """A context whose indexes are watched, and a function that waits until they have been looked at once.

    Only questions wait for that: a client gives up on a server that does not greet it soon.
    """
    client = None
    if options.engine_url:
        client = EngineClient(options.engine_url, options.engine_key or None, timeout_s=_ENGINE_TIMEOUT_S)
    try:
        engine = view_of(client, options.model) if client is not None else None
        with Context(Roots(options.roots), model=options.model, engine=engine) as context:
            watchers = [Watcher(root.index, lambda changes: None, on_status=_quiet) for root in context.roots]
            for watcher in watchers:
                watcher.start()
            try:
                yield context, lambda: _wait_ready(watchers)
            finally:
                for watcher in watchers:
                    watcher.stop()
    finally:
        if client is not None:
            client.close()


def _wait_ready(watchers: Sequence[Watcher]) -> None:
    deadline = time.monotonic() + _FIRST_LOOK_S
    for watcher in watchers:
        watcher.wait_ready(max(0.0, deadline - time.monotonic()))


def _quiet(_line: str) -> None:
    """stdout is the protocol's, and whoever started us may show stderr to nobody."""


class _KeyGuard:
    """401 to whoever does not send the key as a bearer token."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._digest = hashlib.sha256(key.encode()).digest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
            digest = hashlib.sha256(given.encode()).digest()
            if scheme.lower() != "bearer" or not secrets.compare_digest(digest, self._digest):
                await JSONResponse({"error": "send the key as a bearer token"}, 401)(scope, receive, send)
                return
        await self._app(scope, receive, send)
