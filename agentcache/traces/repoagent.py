"""Requests as RepoAgent 0.2 sends them when it documents a Python repository.

Its prompt (`assets/repoagent.txt`; Apache-2.0, github.com/OpenBMB/RepoAgent) is a system message with slots for the
object's path, name and code, and for the code and documentation of what it calls and what calls it;
`{project_structure}` is never filled. Objects come children and callees first; where there are cycles, the one with the
fewest undone before it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from agentcache.traces.edits import edited
from agentcache.traces.prose import names_in, sentences
from agentcache.traces.pyobjects import PyObject, parse_files
from agentcache.traces.references import References, find_references


@dataclass(frozen=True, slots=True)
class RepoAgentOptions:
    """answer_words: length of the answers, on average; edits: functions changed between two sessions"""

    answer_words: int = 110
    sessions: int = 1
    edits: int = 0
    seed: int = 1
    model: str = "gpt-4o-mini"


def repoagent_trace(sources: Mapping[str, str], options: RepoAgentOptions) -> Iterator[dict[str, Any]]:
    """Trace lines of documenting everything, once a session; docs of a session are those of its own run."""
    rng = random.Random(options.seed)
    current = dict(sources)
    number = 0
    for session in range(options.sessions):
        if session:
            current = edited(current, options.edits, rng)
        parsed = parse_files(current)
        references = find_references(parsed)
        docs: dict[PyObject, str] = {}
        for one in in_order([one for file in parsed for one in file.objects], references):
            answer = _document(one, options)
            yield {
                "i": number,
                "t": round(number * 0.1, 3),
                "path": "/v1/chat/completions",
                "body": {
                    "messages": [
                        {"role": "system", "content": _system(one, references, docs)},
                        {"role": "user", "content": _asset("repoagent_user.txt").strip()},
                    ],
                    "model": options.model,
                    "stream": False,
                    "temperature": 0.2,
                },
                "response": {"text": answer, "calls": []},
            }
            docs[one] = answer
            number += 1


def in_order(objects: Sequence[PyObject], references: References) -> Iterator[PyObject]:
    """Children and callees first; of those that are free the first, else the one with the fewest undone."""
    waiting: dict[PyObject, set[PyObject]] = {}
    users: dict[PyObject, list[PyObject]] = {}
    for one in objects:
        waiting[one] = {*one.children, *references.callees[one]} - {one}
        for other in waiting[one]:
            users.setdefault(other, []).append(one)
    left = list(objects)
    while left:
        chosen = next((one for one in left if not waiting[one]), None)
        if chosen is None:
            chosen = min(left, key=lambda one: len(waiting[one]))
        left.remove(chosen)
        for user in users.get(chosen, ()):
            waiting[user].discard(chosen)
        yield chosen


def _system(one: PyObject, references: References, docs: Mapping[PyObject, str]) -> str:
    callees = [_entry(other, docs) for other in references.callees[one]]
    callers = [_entry(other, docs) for other in references.callers[one]]
    relation = {
        (
            True,
            True,
        ): "And please include the reference relationship with its callers and callees in the project from a "
        "functional perspective",
        (
            True,
            False,
        ): "And please include the relationship with its callees in the project from a functional perspective.",
        (
            False,
            True,
        ): "And please include the relationship with its callers in the project from a functional perspective.",
        (False, False): "",
    }[bool(callees), bool(callers)]
    kind = "Class" if one.is_class else "Function"
    slots = {
        "path": one.path,
        "kind": kind,
        "name": one.name,
        "code": one.code,
        "callees": "\n".join([_CALLEES, *callees]) if callees else "",
        "callers": "\n".join([_CALLERS, *callers]) if callers else "",
        "situation": "and combine it with its calling situation in the project," if callers else "",
        "listed": "attributes" if one.is_class else "parameters",
        "relation": relation,
        "example": "**Output Example**: Mock up a possible appearance of the code's return value."
        if one.returns
        else "",
    }
    # all slots at once: code may hold what looks like one
    return re.sub("<<([a-z]+)>>", lambda match: slots[match[1]], _asset("repoagent.txt"))


@cache
def _asset(name: str) -> str:
    return (files("agentcache.traces") / "assets" / name).read_text()


def _entry(other: PyObject | str, docs: Mapping[PyObject, str]) -> str:
    """One referenced object; of a file that refers to it at its top level only the name is told."""
    path, doc, code = (
        (other, None, None) if isinstance(other, str) else (other.path, docs.get(other), other.code)
    )
    return f"obj: {path}\nDocument: \n{doc}\nRaw code:```\n{code}\n```=========="


def _document(one: PyObject, options: RepoAgentOptions) -> str:
    """A made-up document; the same object with the same code gets the same one."""
    rng = random.Random(f"{options.seed} {one.path} {one.code}")
    names = names_in(one.code)
    listed = [f"· {name}: {sentences(rng, names, 5)}" for name in one.parameters[:4]]
    head = f"**{one.name}**: The function of {one.name} is to {sentences(rng, names, 6)}"
    parts = [head, f"**{'attributes' if one.is_class else 'parameters'}**: listed below.", *listed]
    used = sum(len(part.split()) for part in parts)
    length = max(20, round(rng.gauss(options.answer_words, options.answer_words / 6)) - used - 12)
    parts += [
        f"**Code Description**: {sentences(rng, names, length)}",
        f"**Note**: {sentences(rng, names, 10)}",
    ]
    if one.returns:
        parts.append(f"**Output Example**: {rng.choice(names)}={rng.randrange(1000)}")
    return "\n".join(parts)


_CALLEES = "As you can see, the code calls the following objects, their code and docs are as following:"
_CALLERS = "Also, the code has been called by the following objects, their code and docs are as following:"
