"""An engine that comes back: when it dies it is started again, and its port answers 503 in the meantime."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from agentcache.engine import Engine, EngineOptions, url_of
from agentcache.engine_client import EngineClient
from agentcache.errors import AgentCacheError, EngineError
from agentcache.listening import listen
from agentcache.standin import StandIn

_POLL_S = 0.2
_NOTICE_S = 20.0
"""How long an engine whose core has died may take to end, and us to notice."""
_BACKLOG = 2048


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """When to try again.

    first_delay_s, longest_delay_s: the pause before a start, doubled with every crash in a row
    most: crashes in a row after which it is given up
    well_after_s: an engine that has served for so long has not crashed in a row with the one before
    """

    first_delay_s: float = 1.0
    longest_delay_s: float = 30.0
    most: int = 5
    well_after_s: float = 120.0

    def delay_s(self, crashes: int) -> float:
        """The pause after the `crashes`-th crash in a row, from 1."""
        return min(self.first_delay_s * 2.0 ** (crashes - 1), self.longest_delay_s)


class Supervisor:
    """Keeps one engine running on one port. Made and stopped by the same thread; the rest may be called from any.

    The port is bound here and shared with each engine, so it is never anybody else's.
    say: told in one line what happened; on_ready: called with a client whenever an engine answers, before anybody
    waiting for it goes on
    """

    def __init__(
        self,
        options: EngineOptions,
        say: Callable[[str], None],
        *,
        on_line: Callable[[str], None] | None = None,
        on_ready: Callable[[EngineClient], None] = lambda client: None,
        policy: RestartPolicy | None = None,
    ) -> None:
        self._say, self._on_line, self._on_ready = say, on_line, on_ready
        self._policy = policy or RestartPolicy()
        self._listening = listen(options.host, options.port, _BACKLOG)
        self.port: int = self._listening.getsockname()[1]
        self.url = url_of(options.host, self.port)
        self._options = replace(options, port=self.port)
        self._started_at, self._start_s = time.monotonic(), 30.0
        self._standin = StandIn(self._listening, self._seconds_left)
        self._state = threading.Condition()
        self._is_up = False
        self._failure: EngineError | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="supervisor", daemon=True)
        self.restarts = 0
        self._restarts_told = 0
        try:
            self._engine = Engine(self._options, on_line, self._listening)
            self._standin.start()
        except BaseException:
            self._listening.close()
            raise

    def client(self) -> EngineClient:
        return self._engine.client()

    def wait_ready(self) -> None:
        """Return when the first engine answers; from then on it is watched. Raises EngineError if it does not start."""
        self._make_ready()
        self._thread.start()

    def came_back(self) -> bool:
        """Asked when something went wrong: whether the engine has crashed since the last time, and answers again now.

        Waits for that. False if it is well, so that whatever went wrong is no crash, and when `stop` was called. Raises
        EngineError when restarting was given up.
        """
        deadline = time.monotonic() + _NOTICE_S
        with self._state:
            while not self._closing.is_set():
                if self._failure is not None:
                    raise self._failure
                if self._is_up and self.restarts != self._restarts_told:
                    self._restarts_told = self.restarts
                    return True
                if self._is_up and time.monotonic() > deadline:
                    return False
                self._state.wait(_POLL_S)
        return False

    def wait_ended(self) -> None:
        """Return when `stop` was called. Raises EngineError when the engine crashed too often."""
        while not self._closing.wait(_POLL_S):
            if self._failure is not None:
                raise self._failure

    def stop(self) -> None:
        """End the engine in order; Ctrl-C in the meantime ends it at once."""
        self._closing.set()
        with self._state:
            self._state.notify_all()
        try:
            self._engine.stop()
        finally:
            deadline = time.monotonic() + _NOTICE_S
            while self._thread.is_alive() and time.monotonic() < deadline:
                self._engine.kill()  # one that was just being started
                self._thread.join(_POLL_S)
            self._engine.kill()
            self._standin.stop()
            self._listening.close()

    def _keep(self) -> None:
        """Watch, and start again what has died, until `stop` or until it is given up."""
        crashes = 0
        while not self._closing.is_set():
            up_since = time.monotonic()
            while self._engine.alive() and not self._closing.is_set():
                self._closing.wait(_POLL_S)
            if self._closing.is_set():
                return
            crashes = 1 if time.monotonic() - up_since > self._policy.well_after_s else crashes + 1
            self._is_up = False
            self._standin.start()
            while not self._start_again(crashes):
                crashes += 1
                if self._failure is not None or self._closing.is_set():
                    return

    def _start_again(self, crashes: int) -> bool:
        """One more engine; False if it does not come up, or if it is not to be tried any more."""
        why = self._engine.why()
        self._engine.kill()  # what is left of it
        if crashes >= self._policy.most:
            self._give_up(
                f"the engine crashed {crashes} times in a row and is not started again; last: {why}"
            )
            return False
        delay_s = self._policy.delay_s(crashes)
        self._say(
            f"engine: crashed ({why[-200:]}); starting it again in {delay_s:.0f} s, requests get 503 until then"
        )
        if self._closing.wait(delay_s):
            return False
        try:
            self._started_at = time.monotonic()
            self._engine = Engine(self._options, self._on_line, self._listening)
            self.restarts += 1
            self._make_ready()
        except (AgentCacheError, OSError, ValueError):
            return False  # said with the next attempt, or when given up
        self._say("engine: answers again")
        return True

    def _make_ready(self) -> None:
        self._engine.wait_ready()
        self._start_s = time.monotonic() - self._started_at
        self._standin.stop()
        with self.client() as client:
            self._on_ready(client)
        with self._state:
            self._is_up = True
            self._state.notify_all()

    def _give_up(self, message: str) -> None:
        with self._state:
            self._failure = EngineError(message)
            self._state.notify_all()
        self._standin.stop()

    def _seconds_left(self) -> float:
        """Until an engine probably answers, by how long the one before took; never more than half a minute."""
        left = self._started_at + self._start_s - time.monotonic()
        return min(max(left, 2.0), 30.0)
