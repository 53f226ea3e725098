"""Running one program against the endpoint, from its start to its exit status."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from agentcache.engine_client import EngineClient
from agentcache.errors import EngineError, UsageError
from agentcache.launch.environment import Endpoint, environment


def endpoint_at(url: str, key: str) -> Endpoint | None:
    """What answers at `url`; None if nothing does. EngineError if it is no vLLM, or wants another key."""
    with EngineClient(url, key or None) as client:
        if not client.healthy():
            return None
        models = client.get("/v1/models")["data"]
        if not models:
            raise EngineError(f"the server at {url} serves no model")
        return Endpoint(url, models[0]["id"], int(models[0].get("max_model_len") or 8192), key)


def run_program(command: Sequence[str], endpoint: Endpoint, say: Callable[[str], None]) -> int:
    """Run `command` in the current folder with the terminal as its own; returns its exit status, 128 + N for signal N.

    Ctrl-C reaches the program, as it would without us, and is left to it. UsageError if there is no such program.
    """
    found = shutil.which(command[0])
    if found is None:
        raise UsageError(f"{command[0]!r} is no program that can be found; is it installed, and on the PATH?")
    with tempfile.TemporaryDirectory(prefix="agentcache-run-") as folder:
        variables = environment(endpoint, Path(folder))
        say(f"run: {command[0]} talks to {endpoint.url} ({endpoint.model}, {endpoint.context} tokens)")
        with _passing_signals() as started:
            process = subprocess.Popen([found, *command[1:]], env={**os.environ, **variables})
            started(process)
            status = process.wait()
    return status if status >= 0 else 128 - status


class _passing_signals:
    """While it lasts Ctrl-C is the program's own (the terminal sends it to both), and SIGTERM is passed on."""

    def __enter__(self) -> Callable[[subprocess.Popen[bytes]], None]:
        self._process: subprocess.Popen[bytes] | None = None
        self._before = {
            signal.SIGINT: signal.signal(signal.SIGINT, self._interrupted),
            signal.SIGTERM: signal.signal(signal.SIGTERM, self._pass_on),
        }
        return self._started

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _started(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        """The program has it, too, if it shares our terminal; if nobody's terminal sent it, it is passed on."""
        if not os.isatty(0):
            self._pass_on(number, frame)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        if self._process is not None:
            self._process.send_signal(number)
