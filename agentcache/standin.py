"""What answers on the engine's port while there is no engine: 503 with Retry-After, in the words of the API."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]
_LONGEST_READ_S = 10.0
_STOP_S = 2.0


class StandIn:
    """Accepts from a listening socket that it shares with the engine; whoever accepts a connection answers it.

    Taking over therefore loses no connection: those that the kernel has queued are answered by the other one.
    retry_after_s: asked at each request for the seconds until it is worth coming again
    """

    def __init__(self, listening: socket.socket, retry_after_s: Callable[[], float]) -> None:
        self._listening = listening
        self._retry_after_s = retry_after_s
        self._server: Any = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Answer from now on. Does nothing if it does already."""
        import uvicorn
        from starlette.applications import Starlette
        from starlette.routing import Route

        if self._thread is not None:
            return
        app = Starlette(routes=[Route("/{path:path}", self._answer, methods=_METHODS)])
        config = uvicorn.Config(
            app, log_level="critical", lifespan="off", timeout_graceful_shutdown=1, timeout_keep_alive=1
        )
        self._server = uvicorn.Server(config)
        mine = self._listening.dup()  # uvicorn closes what it is given
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [mine]}, name="stand-in", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Accept nothing any more; what was accepted is answered first."""
        if self._thread is None:
            return
        self._server.should_exit = True
        self._thread.join(_STOP_S)
        self._thread = None

    async def _answer(self, request: Request) -> Response:
        await _read_all(request)
        wait_s = max(1, math.ceil(self._retry_after_s()))
        message = f"the engine is starting; try again in {wait_s} s"
        # closed after the answer: the client's next request may then reach the engine
        headers = {"Retry-After": str(wait_s), "Connection": "close"}
        return JSONResponse(error_body(request.url.path, message), status_code=503, headers=headers)


def error_body(path: str, message: str) -> dict[str, Any]:
    """The error in the words of the API that was asked: Anthropic's for messages, OpenAI's for the rest."""
    if path.startswith("/v1/messages"):
        return {"type": "error", "error": {"type": "overloaded_error", "message": message}}
    return {
        "error": {"message": message, "type": "service_unavailable", "param": None, "code": 503},
    }


async def _read_all(request: Request) -> None:
    """Take what the client still sends: closing on unread bytes resets the connection before it sees the answer."""
    deadline = time.monotonic() + _LONGEST_READ_S
    async for _ in request.stream():
        if time.monotonic() > deadline:
            return
