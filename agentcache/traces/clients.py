"""How coding agents write: the size of their prompts, their tools, and how they show files to the model.

Shapes were taken from what the real programs sent; their texts were not: prose stands in for them, as long as theirs.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agentcache.learn.views import ESCAPES, NUMBERS
from agentcache.traces.prose import sentences


@dataclass(frozen=True, slots=True)
class Shown:
    """Lines [first, last] of a file, counted from 1, of `total`."""

    path: str
    lines: Sequence[str]
    first: int
    total: int

    @property
    def last(self) -> int:
        return self.first + len(self.lines) - 1

    @property
    def is_whole(self) -> bool:
        return self.first == 1 and self.last >= self.total

    def numbered(self, numbers: str) -> str:
        number = NUMBERS[numbers]
        return "".join(f"{number(self.first + i)}{line}\n" for i, line in enumerate(self.lines))


@dataclass(frozen=True, slots=True)
class Client:
    """One agent.

    system_words, tool_words: length of its system prompt, and of each tool's description
    lead_words: of what stands before the user's own words; around_words: of what is written around them
    tools: names; read, run: those that read a file and run a command
    batches: an edit and the next read are called in one answer
    stamp: what changes with the session at the head of the system prompt: nothing, the time, or a counter
    show: a file's lines as a tool's output; run_output: a command's
    """

    name: str
    api: Literal["chat", "responses", "messages"]
    system_words: int
    tools: tuple[str, ...]
    tool_words: int
    lead_words: int
    around_words: int
    stamp: Literal["", "time", "header"]
    batches: bool
    show: Callable[[Shown, random.Random], str]
    run_output: Callable[[str, random.Random], str]

    def system(self, role: str, when: str, session: int) -> str:
        """The system prompt. role: "main" or "sub-agent", whose prompt is another, half as long."""
        words = self.system_words if role == "main" else self.system_words // 2
        text = _prose(f"{self.name} {role}", words)
        if self.stamp == "time":
            return f"You are a coding agent. The current time is {when}.\n\n{text}"
        if self.stamp == "header":
            return f"x-session-header: version=1.0; id={session:03d}{random.Random(session).randrange(10**6)};\n{text}"
        return f"You are a coding agent.\n\n{text}"

    def tool_schemas(self) -> list[dict[str, Any]]:
        """In the chat API's form."""
        return [
            {
                "type": "function",
                "function": {
                    "name": name,
                    "description": _prose(f"{self.name} {name}", self.tool_words),
                    "parameters": {
                        "type": "object",
                        "properties": {
                            key: {"type": "string", "description": _prose(f"{name} {key}", 8)}
                            for key in ("path", "command", "pattern")
                        },
                        "required": ["path"],
                    },
                },
            }
            for name in self.tools
        ]

    def lead(self, date: str) -> str:
        """What a session tells about the machine before the user's words."""
        return f"Today is {date}.\n{_prose(f'{self.name} lead', self.lead_words)}" if self.lead_words else ""

    def around(self, task: str) -> str:
        """The user's words, and what the agent writes around them."""
        if not self.around_words:
            return task
        return f"Please solve this issue: {task}\n\n{_prose(f'{self.name} around', self.around_words)}"


def _prose(seed: str, words: int) -> str:
    """The same text for the same seed, in paragraphs."""
    rng = random.Random(seed)
    names = (
        "path",
        "tool",
        "file",
        "command",
        "user",
        "plan",
        "test",
        "result",
        "patch",
        "session",
        "output",
        "name",
    )
    parts = [sentences(rng, names, min(60, words - done)) for done in range(0, words, 60)]
    return "\n\n".join(parts)


def _tagged(shown: Shown, rng: random.Random) -> str:
    return f"<path>{shown.path}</path>\n<type>file</type>\n<content>\n{shown.numbered('colon')}</content>"


def _tabbed(shown: Shown, rng: random.Random) -> str:
    return shown.numbered("tab")


def _sliced(shown: Shown, rng: random.Random) -> str:
    text = shown.numbered("raw")
    if shown.is_whole:
        return text
    return f"Showing lines {shown.first}-{shown.last} of {shown.total} total lines.\n\n---\n\n{text}"


def _chunked(shown: Shown, rng: random.Random) -> str:
    return _chunk(shown.numbered("raw"), rng)


def _chunk(output: str, rng: random.Random) -> str:
    return (
        f"Chunk ID: {rng.randrange(16**6):06x}\nWall time: 0.0000 seconds\nProcess exited with code 0\n"
        f"Original token count: {len(output) // 4}\nOutput:\n{output}"
    )


def _as_json(shown: Shown, rng: random.Random) -> str:
    return _json_output(shown.numbered("raw" if shown.is_whole else "cat-n"), rng)


def _json_output(output: str, rng: random.Random) -> str:
    """Long output keeps its two ends."""
    escape = ESCAPES["json-html"]
    if len(output) < 10_000:
        return f'{{\n  "returncode": 0,\n  "output": "{escape(output)}"\n}}'
    head, tail = escape(output[:5000]), escape(output[-5000:])
    missing = f"{len(output) - 10_000} characters elided"
    parts = f'"output_head": "{head}",\n  "elided": "{missing}",\n  "output_tail": "{tail}"'
    return f'{{\n  "returncode": 0,\n  {parts}\n}}'


def _plain(output: str, rng: random.Random) -> str:
    return output


_FEW = ("read", "grep", "edit", "run")
_MANY = (*_FEW, "list", "glob", "write", "search", "fetch", "plan", "ask", "agent", "notes", "skill", "wait")

CLIENTS: Mapping[str, Client] = {
    client.name: client
    for client in (
        Client("generic", "chat", 900, _MANY[:8], 60, 40, 0, "time", False, _tagged, _plain),
        Client("opencode", "chat", 1500, _MANY[:10], 120, 60, 0, "", False, _tagged, _plain),
        Client("claude-code", "messages", 3000, _MANY, 250, 60, 0, "header", False, _tabbed, _plain),
        Client("qwen-code", "chat", 6100, _MANY, 260, 190, 0, "", False, _sliced, _plain),
        Client("codex", "responses", 3080, _MANY[:9], 180, 60, 0, "", True, _chunked, _chunk),
        Client("mini-swe-agent", "chat", 5, ("bash",), 6, 0, 480, "", False, _as_json, _json_output),
    )
}


def call_arguments(values: Mapping[str, Any]) -> str:
    """A tool call's arguments as models write them."""
    return json.dumps(values, ensure_ascii=False)
