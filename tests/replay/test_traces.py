"""Generated traffic: valid, seeded, in the right order, and like the real one where that is at hand."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from agentcache.errors import UsageError
from agentcache.replay.chat import chat_of
from agentcache.replay.formats import read_traces
from agentcache.replay.replay import replay
from agentcache.replay.report import report
from agentcache.traces.agent import AgentOptions, agent_trace
from agentcache.traces.clients import CLIENTS
from agentcache.traces.edits import edited
from agentcache.traces.pyobjects import parse_files
from agentcache.traces.references import find_references
from agentcache.traces.repoagent import RepoAgentOptions, in_order, repoagent_trace
from agentcache.traces.sources import read_sources
from tests.replay.conftest import real_trace

SOURCES = {
    "pkg/__init__.py": "from .core import Base, helper\n",
    "pkg/core.py": '''\
def helper(value: int) -> int:
    """Doubles."""
    return 2 * value


class Base:
    def run(self, value: int) -> int:
        return helper(value) + self.shift()

    def shift(self) -> int:
        return 1
''',
    "pkg/use.py": """\
from pkg import Base, helper as h


class Derived(Base):
    def shift(self) -> int:
        return h(2)


def main(base: Base) -> None:
    print(base.run(3), Derived().run(4))
""",
    "pkg/broken.py": "def broken(:\n",
}


def write(lines: Iterable[dict[str, Any]], path: Path) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_references_follow_imports_bases_and_annotations() -> None:
    files = parse_files(SOURCES)
    found = find_references(files)
    names = {one.path: one for file in files for one in file.objects}

    def callees(path: str) -> list[str]:
        return sorted(other.path for other in found.callees[names[path]])

    assert callees("pkg/core.py/Base/run") == ["pkg/core.py/Base/shift", "pkg/core.py/helper"]
    assert callees("pkg/use.py/Derived") == ["pkg/core.py/Base"]
    assert callees("pkg/use.py/Derived/shift") == ["pkg/core.py/helper"]
    assert callees("pkg/use.py/main") == ["pkg/core.py/Base", "pkg/core.py/Base/run", "pkg/use.py/Derived"]
    callers = [c if isinstance(c, str) else c.path for c in found.callers[names["pkg/core.py/helper"]]]
    assert callers == ["pkg/__init__.py", "pkg/core.py/Base/run", "pkg/use.py", "pkg/use.py/Derived/shift"]


def test_repoagent_documents_children_and_callees_first_and_shows_what_it_wrote() -> None:
    lines = list(repoagent_trace(SOURCES, RepoAgentOptions()))
    files = parse_files(SOURCES)
    objects = [one for file in files for one in file.objects]
    order = [one.path for one in in_order(objects, find_references(files))]
    shown = [line["body"]["messages"][0]["content"] for line in lines]
    assert len(lines) == len(objects)
    for path, text in zip(order, shown, strict=True):
        assert f"in this project is {path}.\n" in text
    assert (
        order.index("pkg/core.py/helper")
        < order.index("pkg/core.py/Base/run")
        < order.index("pkg/core.py/Base")
    )
    of = dict(zip(order, lines, strict=True))
    assert (
        of["pkg/core.py/helper"]["response"]["text"]
        in of["pkg/core.py/Base/run"]["body"]["messages"][0]["content"]
    )
    assert (
        "    def shift(self) -> int:\n        return 1\n"
        in of["pkg/core.py/Base/shift"]["body"]["messages"][0]["content"]
    )


def test_answers_have_the_length_asked_for_and_sessions_differ_by_the_edits() -> None:
    lines = list(repoagent_trace(SOURCES, RepoAgentOptions(answer_words=200, sessions=2, edits=2)))
    words = [len(line["response"]["text"].split()) for line in lines]
    assert 150 < sum(words) / len(words) < 250
    half = len(lines) // 2
    first, second = ([line["body"] for line in part] for part in (lines[:half], lines[half:]))
    assert first != second
    unchanged = [line["body"] for line in repoagent_trace(SOURCES, RepoAgentOptions(200, sessions=2))]
    assert unchanged == first * 2
    assert lines == list(repoagent_trace(SOURCES, RepoAgentOptions(answer_words=200, sessions=2, edits=2)))
    assert lines != list(
        repoagent_trace(SOURCES, RepoAgentOptions(answer_words=200, sessions=2, edits=2, seed=2))
    )


def test_edited_code_is_still_python() -> None:
    changed = edited(SOURCES, 3, random.Random(1))
    assert sum(changed[path] != SOURCES[path] for path in SOURCES) >= 1
    assert {file.path for file in parse_files(changed)} == {file.path for file in parse_files(SOURCES)}


@pytest.mark.parametrize("client", CLIENTS)
def test_sessions_of_every_client_can_be_read_back(client: str, tmp_path: Path) -> None:
    options = AgentOptions(client, sessions=3, sub_agents=1)
    path = write(agent_trace(SOURCES, options), tmp_path / "t.jsonl")
    requests = read_traces([path])
    assert {request.api for request in requests} == {CLIENTS[client].api}
    assert [request.at_s for request in requests] == sorted(request.at_s for request in requests)
    mains = 0
    for request in requests:
        chat = chat_of(request)
        assert chat.messages[0]["role"] in ("system", "developer")
        called = [call["id"] for message in chat.messages for call in message.get("tool_calls", ())]
        answered = [message["tool_call_id"] for message in chat.messages if message["role"] == "tool"]
        assert called == answered
        assert chat.tools is not None
        assert len(chat.tools) == len(CLIENTS[client].tools)
        mains += len(called) == 0
    assert mains == 2 * options.sessions  # each session and each sub-agent begins anew


def test_time_stamps_differ_between_sessions_and_numbers_between_lines() -> None:
    lines = list(agent_trace(SOURCES, AgentOptions("generic", sessions=2)))
    heads = {line["body"]["messages"][0]["content"][:80] for line in lines}
    assert len(heads) == 2
    text = json.dumps(lines)
    assert "\\n1: " in text


def test_what_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no \.py file"):
        read_sources(tmp_path)
    with pytest.raises(UsageError, match="no Python function"):
        list(agent_trace({"a.py": "x = 1\n"}, AgentOptions()))


def assert_alike(made: dict[str, Any], real: dict[str, Any]) -> None:
    """Kinds of tokens within 5 points, prefix hits within 2."""
    for kind, share in real["kinds"].items():
        assert made["kinds"][kind] == pytest.approx(share, abs=0.05), kind
    hits = [one["policies"]["prefix"]["hit_rate"] for one in (made, real)]
    assert hits[0] == pytest.approx(hits[1], abs=0.02)


def test_made_traces_are_like_the_recorded_ones(
    folder: Path, tmp_path: Path, sources_of: Callable[[str], Path]
) -> None:
    recorded = {
        client: real_trace(f"{client}-itsdangerous", f"{client}-itsdangerous-s2")
        for client in ("qwen-code", "codex", "mini-swe-agent")
    }
    (documented,) = real_trace("repoagent-itsdangerous")
    sources = read_sources(sources_of("itsdangerous==2.2.0"))

    def figures(paths: list[Path]) -> dict[str, Any]:
        return report(replay(read_traces(paths), folder), "smollm2-135m", [])

    made = write(repoagent_trace(sources, RepoAgentOptions()), tmp_path / "repoagent.jsonl")
    assert_alike(figures([made]), figures([documented]))
    for client, paths in recorded.items():
        # the recorded agents were not asked to test
        lines = agent_trace(sources, AgentOptions(client, tests=False))
        assert_alike(figures([write(lines, tmp_path / f"{client}.jsonl")]), figures(paths))
