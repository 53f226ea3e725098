"""Who uses the server besides the warm worker: counted where requests come in, so that asking costs no engine step."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from agentcache.engine_client import WORKER_HEADER

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

_WORKER = WORKER_HEADER.lower().encode()
_KEPT_PAUSES = 32


class Traffic:
    """Agents' requests in flight and the pauses between them. Used on the server's event loop alone."""

    def __init__(self) -> None:
        self.running = 0
        self.requests = 0
        self._idle_since: float | None = None
        self._pauses: deque[float] = deque(maxlen=_KEPT_PAUSES)
        self._none_runs = asyncio.Event()
        self._none_runs.set()

    def begin(self) -> None:
        """A request has come in."""
        if not self.running and self._idle_since is not None:
            self._pauses.append(time.monotonic() - self._idle_since)
        self.running += 1
        self._none_runs.clear()

    def end(self) -> None:
        """It is answered, or was given up."""
        self.running -= 1
        self.requests += 1
        if not self.running:
            self._idle_since = time.monotonic()
            self._none_runs.set()

    async def wait(self, timeout_s: float) -> None:
        """Return when no request runs, or after `timeout_s`."""
        try:
            await asyncio.wait_for(self._none_runs.wait(), timeout_s)
        except TimeoutError:
            return

    def to_dict(self) -> dict[str, Any]:
        """As JSON; `idle_s` is null before the first request."""
        idle = None if self._idle_since is None else round(time.monotonic() - self._idle_since, 4)
        return {
            "running": self.running,
            "requests": self.requests,
            "idle_s": 0.0 if self.running else idle,
            "pauses_s": [round(pause, 4) for pause in self._pauses],
        }


class CountRequests:
    """ASGI middleware: counts calls of the model's APIs, from the first byte to the last."""

    def __init__(self, app: ASGIApp, traffic: Traffic) -> None:
        self._app = app
        self._traffic = traffic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not _is_agents(scope):
            await self._app(scope, receive, send)
            return
        self._traffic.begin()
        try:
            await self._app(scope, receive, send)
        finally:
            self._traffic.end()


def _is_agents(scope: Scope) -> bool:
    return (
        scope["type"] == "http"
        and scope["method"] == "POST"
        and not scope["path"].startswith("/agentcache/")
        and "tokenize" not in scope["path"]
        and all(name.lower() != _WORKER for name, _ in scope["headers"])
    )
