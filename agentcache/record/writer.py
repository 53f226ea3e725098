"""Trace lines, written as they come; a line is whole or not there."""

from __future__ import annotations

import gzip
import json
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

from agentcache.errors import UsageError
from agentcache.replay.trace import Answer

_SECRET = re.compile(r"(x-)?(api[-_]?key|authorization|access[-_]?token|password|secret)", re.IGNORECASE)
_REMOVED = "[removed]"


class TraceWriter:
    """Writes one trace file. Close it.

    Headers are never written but for the user agent. What the request's own credentials are is blotted out wherever
    it stands in the body, and so are fields of the body that are named like one.
    """

    def __init__(self, path: Path) -> None:
        """UsageError if the file exists, so that nothing is lost, or cannot be written."""
        try:
            opened: IO[Any] = gzip.open(path, "xt") if path.suffix == ".gz" else path.open("x")  # noqa: SIM115
        except FileExistsError:
            raise UsageError(f"{path} exists already: give another file, or remove it") from None
        except OSError as error:
            raise UsageError(f"the trace cannot be written to {path}: {error.strerror}") from error
        self._file = opened
        self._began = time.monotonic()
        self.count = 0

    def now(self) -> float:
        """Seconds since the recording began."""
        return time.monotonic() - self._began

    def write(
        self,
        at_s: float,
        path: str,
        body: Mapping[str, Any],
        answer: Answer,
        user_agent: str,
        secrets: Iterable[str],
        status: int,
    ) -> None:
        """One request and its answer."""
        record = {
            "i": self.count,
            "t": round(at_s, 3),
            "path": path.split("?", 1)[0],
            "body": without_secrets(body, [secret for secret in secrets if len(secret) >= 8]),
            "response": {
                "text": answer.text,
                "calls": [{"name": call.name, "args": _arguments(call.arguments)} for call in answer.calls],
            },
            "status": status,
            "user_agent": user_agent,
        }
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()
        self.count += 1

    def close(self) -> None:
        self._file.close()


def without_secrets(value: Any, secrets: list[str]) -> Any:
    """A copy of a body without credentials; schemas of tools that have such parameters stay as they are."""
    if isinstance(value, Mapping):
        return {
            key: _REMOVED
            if isinstance(inner, str) and _SECRET.fullmatch(key)
            else without_secrets(inner, secrets)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [without_secrets(inner, secrets) for inner in value]
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, _REMOVED)
    return value


def _arguments(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
