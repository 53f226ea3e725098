"""A vLLM that somebody else runs, with the plug-in installed there: used, watched, never started or stopped."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from agentcache.engine_client import EngineClient
from agentcache.errors import EngineError, UsageError

_POLL_S = 1.0
_MOST, _WITHIN_S = 5, 60.0
"""Who asks so often in so short a time whether the engine is back has another trouble."""


class ForeignEngine:
    """What `serve --engine-url` has in the place of a supervised engine.

    say: told in one line when the engine goes away and when it answers again
    """

    def __init__(
        self,
        url: str,
        say: Callable[[str], None],
        *,
        api_key: str = "",
        on_ready: Callable[[EngineClient], None] = lambda client: None,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise UsageError(f"--engine-url must be a URL such as http://127.0.0.1:8000, not {url}")
        self.url = url.rstrip("/").removesuffix("/v1")
        self._say, self._api_key, self._on_ready = say, api_key, on_ready
        self._closing = threading.Event()
        self._asked: deque[float] = deque(maxlen=_MOST)

    def client(self) -> EngineClient:
        return EngineClient(self.url, self._api_key or None)

    def wait_ready(self) -> None:
        """Raises EngineError, in one line, if nothing answers there, or without our plug-in, or not to us."""
        with self.client() as client:
            if not client.healthy():
                raise EngineError(
                    f"no engine answers at {self.url}; start vLLM there, or leave --engine-url away"
                )
            client.status()  # says what is missing: the plug-in, or the key
            self._on_ready(client)

    def came_back(self) -> bool:
        """Asked when something went wrong: wait until the engine answers. False if `stop` was called before, or if it
        went wrong again and again although the engine answers."""
        self._asked.append(time.monotonic())
        if len(self._asked) == _MOST and self._asked[-1] - self._asked[0] < _WITHIN_S:
            return False
        with self.client() as client:
            while not self._closing.wait(_POLL_S):
                if client.healthy():
                    return True
        return False

    def wait_ended(self) -> None:
        """Return when `stop` was called; an engine that is away is waited for."""
        was_up = True
        with self.client() as client:
            while not self._closing.wait(_POLL_S):
                is_up = client.healthy()
                if is_up != was_up:
                    self._say(
                        f"engine: {self.url} {'answers again' if is_up else 'does not answer; waiting for it'}"
                    )
                was_up = is_up

    def stop(self) -> None:
        """Forget it; it goes on."""
        self._closing.set()
