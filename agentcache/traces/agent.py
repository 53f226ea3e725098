"""Coding sessions: an agent reads, greps, edits, tests and reads again; several sessions on one repository, sub-agents.

Odd sessions change something, even ones explain something. An edit stays for the sessions behind it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from agentcache.errors import UsageError
from agentcache.replay.trace import Answer, ToolCall
from agentcache.traces.clients import CLIENTS, Client, Shown, call_arguments
from agentcache.traces.conversation import Conversation
from agentcache.traces.prose import names_in, sentences
from agentcache.traces.pyobjects import PyObject, parse_files

_BEGIN = datetime(2026, 1, 5, 9, 0, 0)
_SLICE_LINES = 80
_FILE_LINES = range(60, 800)
"""Files that agents read whole, where there are some."""


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """client: a name in `CLIENTS`; sub_agents: how many each session starts; tests: run the tests after an edit"""

    client: str = "generic"
    sessions: int = 2
    sub_agents: int = 0
    tests: bool = True
    seed: int = 1


def agent_trace(sources: Mapping[str, str], options: AgentOptions) -> Iterator[dict[str, Any]]:
    """Trace lines of all sessions, one behind the other. UsageError if no file has a function to change."""
    if not any(not one.is_class for file in parse_files(sources) for one in file.objects):
        raise UsageError("the repository has no Python function to work on")
    rng = random.Random(options.seed)
    world = _World(dict(sources), CLIENTS[options.client], rng)
    for session in range(options.sessions):
        world.clock += timedelta(hours=session % 3 + 1, seconds=rng.randrange(60))
        if session % 2 == 0:
            yield from _change(world, session, options)
        else:
            yield from _explain(world, session, options)


class _World:
    """The repository as it is now, the clock, and the number of the next line."""

    def __init__(self, sources: dict[str, str], client: Client, rng: random.Random) -> None:
        self.sources = sources
        self.client = client
        self.rng = rng
        self.clock = _BEGIN
        self.number = 0

    def line(self, conversation: Conversation, answer: Answer) -> dict[str, Any]:
        self.clock += timedelta(seconds=self.rng.randrange(2, 20))
        self.number += 1
        return conversation.ask(self.number - 1, (self.clock - _BEGIN).total_seconds(), answer)

    def begin(self, session: int, task: str, role: str = "main") -> Conversation:
        return Conversation(self.client, role, self.clock.isoformat(), session, task)

    def files(self, count: int) -> list[str]:
        """Different files worth reading: long ones, code before tests."""
        candidates = [
            path
            for path, text in self.sources.items()
            if text.count("\n") in _FILE_LINES
            and not re.search(r"(^|/)(tests?|docs?|examples?)/|conftest", path)
        ]
        if len(candidates) < count:
            candidates = list(self.sources)
        longest = sorted(candidates, key=lambda path: (-len(self.sources[path]), path))
        return self.rng.sample(longest[: count + 1], min(count, len(longest)))

    def shown(self, path: str, first: int = 1, count: int | None = None) -> Shown:
        lines = self.sources[path].split("\n")
        if lines[-1] == "":
            lines.pop()
        last = len(lines) if count is None else first + count - 1
        return Shown(path, lines[first - 1 : last], first, len(lines))

    def slice(self, path: str, count: int) -> Shown:
        """Some lines out of a file."""
        total = self.sources[path].count("\n")
        return self.shown(path, self.rng.randrange(1, max(2, total - count)), count)

    def show(self, shown: Shown) -> str:
        return self.client.show(shown, self.rng)

    def grep(self, pattern: str) -> str:
        """`grep -rn`: at most 20 lines."""
        found = [
            f"{path}:{number}:{line}"
            for path, text in self.sources.items()
            for number, line in enumerate(text.split("\n"), start=1)
            if pattern in line
        ]
        return self.client.run_output("".join(f"{line}\n" for line in found[:20]), self.rng)


def _change(world: _World, session: int, options: AgentOptions) -> Iterator[dict[str, Any]]:
    """Read a file, look around, edit it, test, read it again."""
    target, other = (world.files(2) * 2)[:2]
    function = _a_function(world, target)
    talk = world.begin(session, f"Make {function.name} in {target} say what it does with odd input.")
    yield world.line(talk, _step("I will read the file first.", _read(target)))
    talk.results([world.show(world.shown(target))])
    yield from _sub_agents(world, talk, session, options)
    pattern = f"{function.name}("
    calls = (_read(other), ToolCall("grep", call_arguments({"pattern": pattern})))
    yield world.line(talk, _step("Now its neighbour, and who uses it.", *calls))
    talk.results([world.show(world.slice(other, _SLICE_LINES)), world.grep(pattern)])
    edit = _edit(world, function)
    at = function.node.lineno
    applied = f"The file {target} has been updated.\n{world.show(world.shown(target, max(1, at - 4), 9))}"
    total = world.sources[target].count("\n")
    again = world.show(world.shown(target, max(1, min(at - 30, total - 69)), 70))
    if world.client.batches:
        yield world.line(talk, _step("Apply the edit, and read it again.", edit, _read(target)))
        talk.results([applied, again])
    else:
        yield world.line(talk, _step("Apply the edit.", edit))
        talk.results([applied])
    if options.tests:
        run = ToolCall("run", call_arguments({"command": "python -m pytest -q"}))
        yield world.line(talk, _step("Run the tests.", run))
        passed = (
            f"{'.' * 60} [100%]\n{world.rng.randrange(20, 400)} passed in {world.rng.random() * 9:.2f}s\n"
        )
        talk.results([world.client.run_output(passed, world.rng)])
    if not world.client.batches:
        yield world.line(talk, _step("Re-read the edited file.", _read(target)))
        talk.results([again])
    yield world.line(talk, Answer(f"Done: {function.name} now checks its input."))


def _explain(world: _World, session: int, options: AgentOptions) -> Iterator[dict[str, Any]]:
    """Read files in another order, and a part of a third."""
    first, second, third = (world.files(3) * 3)[:3]
    talk = world.begin(session, f"Explain how {first} and {second} work together.")
    yield world.line(talk, _step("Start from the first file.", _read(first)))
    talk.results([world.show(world.shown(first))])
    yield from _sub_agents(world, talk, session, options)
    yield world.line(talk, _step("Now the second one, whole.", _read(second)))
    talk.results([world.show(world.shown(second))])
    yield world.line(talk, _step("And what it delegates to.", _read(third)))
    talk.results([world.show(world.slice(third, 140))])
    names = names_in(world.sources[first])
    yield world.line(talk, Answer(sentences(world.rng, names, 60)))


def _sub_agents(
    world: _World, talk: Conversation, session: int, options: AgentOptions
) -> Iterator[dict[str, Any]]:
    """Each reads two files under a prompt of its own and reports; the main agent gets the reports."""
    for _ in range(options.sub_agents):
        path, other = (world.files(2) * 2)[:2]
        task = f"Summarise {path} for another agent."
        yield world.line(
            talk, _step("Ask a sub-agent.", ToolCall("agent", call_arguments({"command": task})))
        )
        own = world.begin(session, task, "sub-agent")
        for name in (path, other):
            yield world.line(own, _step(f"Read {name}.", _read(name)))
            own.results([world.show(world.shown(name))])
        report = sentences(world.rng, names_in(world.sources[path]), 80)
        yield world.line(own, Answer(report))
        talk.results([report])


def _a_function(world: _World, path: str) -> PyObject:
    """A function of the file; where it has none, any of the repository."""
    for sources in ({path: world.sources[path]}, world.sources):
        found = [one for file in parse_files(sources) for one in file.objects if not one.is_class]
        if found:
            return world.rng.choice(found)
    raise AssertionError("a Python repository without a function: refused before")


def _edit(world: _World, function: PyObject) -> ToolCall:
    """Put a line into the function, in the repository, too."""
    lines = world.sources[function.file].split("\n")
    body = function.node.body[0]
    old = lines[body.lineno - 1]
    if body.lineno == function.node.lineno:
        new = old + "  # checked"
        lines[body.lineno - 1] = new
    else:
        added = f"{' ' * body.col_offset}checked = {world.rng.randrange(10**6)}"
        new = f"{added}\n{old}"
        lines[body.lineno - 1 : body.lineno] = [added, old]
    world.sources[function.file] = "\n".join(lines)
    return ToolCall("edit", call_arguments({"path": function.file, "old": old, "new": new}))


def _read(path: str) -> ToolCall:
    return ToolCall("read", call_arguments({"path": path}))


def _step(text: str, *calls: ToolCall) -> Answer:
    return Answer(text, calls)
