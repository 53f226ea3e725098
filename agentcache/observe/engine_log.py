"""What of the engine's log people see: its own warnings, all of it, or one JSON object a line.

The engine's processes write to one pipe, each line with a prefix of vLLM's. Objects are found behind it.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from typing import Any, Final

JSON_LOG: Final = "AGENTCACHE_LOG_JSON"
"""Environment variable: the engine writes an object for each request."""
_LEFT_OUT: Final = ("placed", "broken", "trace_headers")
_OURS: Final = '{"log": "agentcache", '
_WARNING: Final = re.compile(r"\bWARNING\b.*?\bagentcache: (.*)")


def json_line(event: str, **fields: Any) -> str:
    """One object: {"log": "agentcache", "time": seconds since the epoch, "event": event, ...}."""
    return json.dumps({"log": "agentcache", "time": round(time.time(), 3), "event": event, **fields})


def write_request(record: dict[str, Any]) -> None:
    """One line for a finished request, if the engine was started with JSON_LOG. No text of its prompt is in it."""
    if os.environ.get(JSON_LOG):
        fields = {key: value for key, value in record.items() if key not in _LEFT_OUT}
        broken = record["broken"]
        print(json_line("request", **fields, broken_by=broken["cause"] if broken else ""), flush=True)


class EngineLog:
    """Called with each line of the engine's log, from its reader's thread.

    write: prints one line; verbose: every line of vLLM's, too; as_json: objects only
    """

    def __init__(self, write: Callable[[str], None], *, verbose: bool, as_json: bool) -> None:
        self._write, self._verbose, self._as_json = write, verbose, as_json

    def say(self, message: str) -> None:
        """A line of `serve` itself."""
        self._write(json_line("serve", message=message) if self._as_json else message)

    def __call__(self, line: str) -> None:
        at = line.find(_OURS)
        if at >= 0:
            self._write(line[at:])
        elif self._verbose:
            self._write(json_line("engine", message=line) if self._as_json else line)
        elif (found := _WARNING.search(line)) is not None:
            self._write(json_line("warning", message=found[1]) if self._as_json else f"note: {found[1]}")
