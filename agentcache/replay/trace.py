"""What a trace is made of: requests as an agent sent them, and what was answered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Api = Literal["chat", "responses", "messages", "completions"]

PATHS: dict[Api, str] = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "completions": "/v1/completions",
}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool as the model wrote it. arguments: the JSON object as text."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model answered: its text, then the tools it called."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.text or self.calls)


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a trace.

    number: from 0, over all traces that are replayed together
    source: name of the trace file; at_s: seconds since the trace began
    body: as the client sent it, less headers
    """

    number: int
    source: str
    at_s: float
    api: Api
    body: Mapping[str, Any]
    answer: Answer


def api_of_path(path: str) -> Api | None:
    """Which API a URL path belongs to; None if it is none that has a prompt."""
    bare = path.split("?", 1)[0].rstrip("/")
    for api, known in PATHS.items():
        if bare.endswith(known.removeprefix("/v1")):
            return api
    return None
