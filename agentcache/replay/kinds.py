"""What kind of text each token of a prompt is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from agentcache.replay.chat import Chat, text_of


class Kind(IntEnum):
    """Kinds of text, in the order reports name them."""

    TEMPLATE = 0
    OWN_CODE = 1
    REFERENCED_CODE = 2
    GENERATED = 3
    TOOL_OUTPUT = 4
    NAMES = 5
    OTHER = 6


LABELS = {
    Kind.TEMPLATE: "template and tools",
    Kind.OWN_CODE: "own code",
    Kind.REFERENCED_CODE: "referenced code",
    Kind.GENERATED: "generated text",
    Kind.TOOL_OUTPUT: "tool output",
    Kind.NAMES: "names and paths",
    Kind.OTHER: "other",
}
MEANINGS = {
    Kind.TEMPLATE: "the chat template's own text, system messages, tool schemas",
    Kind.OWN_CODE: "the code a request is about: RepoAgent's target, code in a user's message",
    Kind.REFERENCED_CODE: "other code: what the target calls or is called by, files that a tool showed",
    Kind.GENERATED: "what the model wrote earlier: its messages, its tool calls, documentation it generated",
    Kind.TOOL_OUTPUT: "what a tool returned and is neither code of the repository nor a path",
    Kind.NAMES: "paths, and names that stand by themselves",
    Kind.OTHER: "what the user wrote",
}
Kinds = npt.NDArray[np.uint8]

_BY_ROLE = {
    "system": Kind.TEMPLATE,
    "developer": Kind.TEMPLATE,
    "assistant": Kind.GENERATED,
    "tool": Kind.TOOL_OUTPUT,
}
_PATH = re.compile(r"(?<![\w/.-])~?(?:[\w.-]*/)+[\w.-]*\w(?::\d+)?")


class Stretch(NamedTuple):
    """Characters [start, stop) of a prompt are of one kind."""

    start: int
    stop: int
    kind: Kind


def stretches(text: str, chat: Chat) -> list[Stretch]:
    """Kinds of a rendered prompt, ascending; characters in none of them are the template's.

    A message's content is looked for behind the one before it, as templates keep their order; tool calls between their
    message and the next.
    """
    places: list[tuple[int, int]] = []
    here = 0
    for message in chat.messages:
        content = text_of(message.get("content"))
        start = text.find(content, here)
        if start < 0:
            content = content.strip()
            start = text.find(content, here)
        places.append((start, start + len(content)) if content and start >= 0 else (-1, here))
        here = places[-1][1]
    found: list[Stretch] = []
    limit = len(text)
    for message, (start, stop) in zip(reversed(chat.messages), reversed(places), strict=True):
        # from the last one back, so that where the next message begins is known
        found += reversed(_calls(text, stop, limit, message))
        if start >= 0:
            found += reversed(list(_inside(text[start:stop], start, message)))
            limit = start
    return found[::-1]


def kinds_of(starts: npt.NDArray[np.int64], found: Sequence[Stretch]) -> Kinds:
    """The kind of each token, by the character it begins at."""
    bounds = [0]
    kinds = [Kind.TEMPLATE]
    for stretch in found:
        if stretch.start > bounds[-1]:
            bounds.append(stretch.start)
            kinds.append(stretch.kind)
        else:
            kinds[-1] = stretch.kind
        bounds.append(stretch.stop)
        kinds.append(Kind.TEMPLATE)
    return np.array(kinds, np.uint8)[np.searchsorted(bounds, starts, side="right") - 1]


def _calls(text: str, here: int, limit: int, message: Mapping[str, Any]) -> list[Stretch]:
    """A message's tool calls: names and arguments, where the template shows them."""
    found = []
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        for wanted in (str(function.get("name") or ""), _written(function.get("arguments"))):
            start = text.find(wanted, here, limit) if wanted else -1
            if start >= 0:
                here = start + len(wanted)
                found.append(Stretch(start, here, Kind.GENERATED))
    return found


def _written(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _inside(content: str, start: int, message: Mapping[str, Any]) -> Iterator[Stretch]:
    """The stretches of one message."""
    base = _BY_ROLE.get(str(message.get("role")), Kind.OTHER)
    if content.startswith((_REPOAGENT, _REPOAGENT_USER)):
        yield from _repoagent(content, start)
        return
    here = 0
    if base in (Kind.TOOL_OUTPUT, Kind.OTHER):
        for match in _PATH.finditer(content):
            if match.start() > here:
                yield Stretch(start + here, start + match.start(), base)
            yield Stretch(start + match.start(), start + match.end(), Kind.NAMES)
            here = match.end()
    if here < len(content):
        yield Stretch(start + here, start + len(content), base)


_REPOAGENT = "You are an AI documentation assistant"
_REPOAGENT_USER = "Keep in mind that your audience is document readers"
_CALLS = "As you can see, the code calls the following objects"
_CALLED = "Also, the code has been called by the following objects"
_ASK = "Please generate a detailed explanation document"
_SLOTS = re.compile(
    r"The path of the document you need to generate in this project is (?P<path>[^\n]*)\.\n"
    r"|whose name is \"(?P<name>[^\"\n]*)\"\.\n"
    rf"|The content of the code is as follows:\n(?P<own>.*?)(?=\n+(?:{_CALLS}|{_CALLED}|{_ASK}))"
    r"|^obj: (?P<object>[^\n]*)\n(?:Document: \n(?P<document>.*?)\nRaw code:```\n(?P<code>.*?)(?=\n?```==========))"
    r"|^\*\*(?P<title>[\w.]+)\*\*: The function of (?P<again>[\w.]+) is XXX",
    re.DOTALL | re.MULTILINE,
)
_SLOT_KINDS = {
    "path": {"path": Kind.NAMES},
    "name": {"name": Kind.NAMES},
    "own": {"own": Kind.OWN_CODE},
    "code": {"object": Kind.NAMES, "document": Kind.GENERATED, "code": Kind.REFERENCED_CODE},
    "again": {"title": Kind.NAMES, "again": Kind.NAMES},
}
"""By the last group of an alternative: the kinds of its groups."""


def _repoagent(content: str, start: int) -> Iterator[Stretch]:
    """RepoAgent puts what varies into its system message: the slots of its template say what is what."""
    for match in _SLOTS.finditer(content):
        for slot, kind in _SLOT_KINDS[str(match.lastgroup)].items():
            first, last = match.span(slot)
            if not (slot == "document" and match[slot] == "None"):
                yield Stretch(start + first, start + last, kind)
