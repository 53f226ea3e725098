"""Which view of its files a client uses is seen in what it sends, and kept warm for the files that matter to it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentcache.context import Streams
from agentcache.entry import INDEX_DOMAIN, as_tokens
from agentcache.indexer import Index
from agentcache.learn.lines import KnownLines
from agentcache.learn.note import Note
from agentcache.learn.view_source import ViewSource
from agentcache.learn.views import NUMBERS, View
from agentcache.match import Matcher
from agentcache.warm.budget import Budget
from agentcache.warm.job import Job, Urgency

MODEL = "ab" * 32
LINES = [f"    total_{i} = compute_value_{i}(argument_{i}, {i})" for i in range(40)]
MAIN = "def main_function(argument):\n" + "\n".join(LINES) + "\n    return total_1\n"
USES = "from main import main_function\n\n\ndef use_it():\n    return main_function('something or other')\n"
ALOOF = "def aloof_from_everything():\n    return 'nobody mentions me anywhere at all'\n"


class World:
    """A repository, its views, and an engine that is a matcher."""

    def __init__(self, root: Path, streams: Streams, budget_tokens: int = 100_000) -> None:
        self.root, self.streams, self.now = root, streams, 0.0
        for name, text in (("main.py", MAIN), ("uses.py", USES), ("aloof.py", ALOOF)):
            (root / name).write_text(text)
        self.index = Index.open(root, root.parent / "index.db")
        self.index.update(changes=False)
        self.dropped: list[str] = []
        self.matcher = Matcher()
        self.source = ViewSource(
            self.index, streams, MODEL, Budget(budget_tokens, 1), self.drop, clock=lambda: self.now
        )

    def drop(self, ids: list[str]) -> None:
        self.dropped += ids
        for id in ids:
            self.matcher.remove(id)

    def show(self, text: str) -> None:
        """An agent sends this, and the engine has to compute it."""
        self.source.notice(Note("", (as_tokens(self.streams.encode(text)),)))

    def work(self) -> list[Job]:
        self.now += 10.0
        jobs = []
        while self.source.urgency() is not None and (job := self.source.take()) is not None:
            jobs.append(job)
            for info in job.entries(MODEL):
                assert info.salt == INDEX_DOMAIN, "files are everybody's"
                self.matcher.add(info)
            self.source.done(job, 1)
        return jobs

    def found(self, text: str) -> float:
        """Share of a text's tokens that an entry has."""
        tokens = as_tokens(self.streams.encode(text))
        spans = self.matcher.match(tokens, salts=(INDEX_DOMAIN,), joined=True)
        return sum(span.num_matched for span in spans) / len(tokens)


@pytest.fixture(scope="module")
def streams(model_folder: str) -> Streams:
    return Streams(model_folder, 2047)


@pytest.fixture
def world(tmp_path: Path, streams: Streams) -> Iterator[World]:
    root = tmp_path / "repository"
    root.mkdir()
    made = World(root, streams)
    yield made
    made.index.close()


def numbered(text: str, style: str) -> str:
    return "".join(f"{NUMBERS[style](i + 1)}{line}\n" for i, line in enumerate(text.splitlines()))


@pytest.mark.parametrize("style", ["tab", "cat-n", "colon", "colon-tight"])
def test_a_numbered_view_is_seen_and_kept_for_all_files(world: World, style: str) -> None:
    world.show(f"<file>\n{numbered(MAIN, style)}</file>")
    assert world.source.views == {View(style)}
    assert world.source.urgency() is Urgency.VIEW
    jobs = world.work()
    assert [job.label.split()[0] for job in jobs] == ["main.py", "uses.py", "aloof.py"], (
        "its neighbours, then the rest"
    )
    assert [job.urgency for job in jobs] == [Urgency.VIEW, Urgency.VIEW, Urgency.IMPORTANT]
    for text in (MAIN, USES, ALOOF):
        assert world.found(numbered(text, style)) > 0.9
    assert world.found(MAIN) < 0.5


def test_an_escaped_view(world: World) -> None:
    world.show(json.dumps({"returncode": 0, "output": MAIN}))
    assert world.source.views == {View("raw", "json")}
    world.work()
    assert world.found(json.dumps({"output": USES})) > 0.6


def test_raw_text_and_unknown_text_show_no_view(world: World) -> None:
    world.show(MAIN)
    world.show(numbered("\n".join(f"a line that no file of it has, {i}" for i in range(30)), "tab"))
    world.show(numbered(MAIN, "tab")[:60])
    assert world.source.views == set()
    assert world.work() == []


def test_an_edited_file_comes_again_and_its_lines_are_found_meanwhile(world: World) -> None:
    world.show(numbered(MAIN, "tab"))
    world.work()
    edited = "import something_new\n" + MAIN
    (world.root / "main.py").write_text(edited)
    world.index.update(changes=False)
    assert world.found(numbered(edited, "tab")) > 0.6, "all numbers have moved"
    jobs = world.work()
    assert [job.label for job in jobs] == ["main.py (tab)"]
    assert world.found(numbered(edited, "tab")) > 0.95
    assert world.work() == []


def test_the_budget_is_for_files_that_are_shown(tmp_path: Path, streams: Streams) -> None:
    root = tmp_path / "repository"
    root.mkdir()
    size = len(streams.encode(numbered(MAIN, "tab")))
    world = World(root, streams, size + 60)
    world.show(numbered(MAIN, "tab"))
    jobs = world.work()
    assert jobs[0].label == "main.py (tab)"
    assert sum(len(job.tokens) for job in jobs) <= size + 60
    (root / "other.py").write_text(MAIN.replace("total_", "another_"))
    world.index.update(changes=False)
    world.now += 100.0
    world.show(numbered(MAIN.replace("total_", "another_"), "tab"))
    assert [job.label for job in world.work()] == ["other.py (tab)"]
    assert world.dropped, "what was shown before made room"
    world.index.close()


def test_lines_are_known_by_what_they_say() -> None:
    lines = KnownLines(
        [("a.py", MAIN.encode()), ("b.py", MAIN.encode() + b"x = only_here_and_long_enough\n")]
    )
    assert lines.path_of(LINES[3]) == "a.py"
    assert lines.path_of("x = only_here_and_long_enough") == "b.py"
    assert lines.path_of("return x") is None
    assert lines.path_of("a line that stands nowhere") is None
    assert LINES[0] in lines
    assert "nowhere to be found" not in lines
    assert KnownLines([]).path_of(LINES[0]) is None
