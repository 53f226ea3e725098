"""The command, what it prints as JSON, and its page; and the figures on recorded traces where those are at hand."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agentcache.cli.main import app
from agentcache.context import Streams
from agentcache.learn.views import ESCAPES, NUMBERS, View, recognise
from agentcache.replay.formats import read_traces
from agentcache.replay.replay import replay
from agentcache.replay.report import report
from agentcache.replay.source import Source
from agentcache.traces.agent import AgentOptions, agent_trace
from agentcache.traces.repoagent import RepoAgentOptions, repoagent_trace
from tests.replay.conftest import CODE, real_trace, write_lines

KEYS = {
    "requests",
    "prompt_tokens",
    "reused_tokens",
    "recomputed_tokens",
    "computed_tokens",
    "hit_rate",
    "by_kind",
}
KINDS = {
    "template and tools",
    "own code",
    "referenced code",
    "generated text",
    "tool output",
    "names and paths",
    "other",
}
runner = CliRunner()


def run(*arguments: str) -> str:
    result = runner.invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.stdout


def as_json(output: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return result


@pytest.fixture
def trace(repository: Path, tmp_path: Path) -> Path:
    sources = {path.name: path.read_text() for path in repository.glob("*.py")}
    lines = [
        *agent_trace(sources, AgentOptions("mini-swe-agent")),
        *repoagent_trace(sources, RepoAgentOptions()),
    ]
    return write_lines(tmp_path / "t.jsonl", lines)


def test_json_has_the_promised_keys_and_adds_up(trace: Path, repository: Path) -> None:
    result = as_json(run("replay", str(trace), "--repo", str(repository), "--json"))
    assert list(result["policies"]) == ["prefix", "chunk256", "agentcache", "upper"]
    for figures in result["policies"].values():
        assert figures.keys() >= KEYS
        assert figures["by_kind"].keys() == KINDS
        assert figures["prompt_tokens"] == result["prompt_tokens"]
        assert figures["reused_tokens"] + figures["computed_tokens"] == figures["prompt_tokens"]
        assert figures["recomputed_tokens"] <= figures["reused_tokens"]
        assert figures["hit_rate"] == pytest.approx(
            figures["reused_tokens"] / figures["prompt_tokens"], abs=1e-6
        )
        for name in ("prompt_tokens", "reused_tokens", "recomputed_tokens"):
            assert sum(kind[name] for kind in figures["by_kind"].values()) == figures[name]
    rates = {name: figures["hit_rate"] for name, figures in result["policies"].items()}
    assert rates["prefix"] < rates["agentcache"]
    assert rates["chunk256"] < rates["agentcache"] < rates["upper"] + 0.01
    assert any("json" in view for view in result["background"]["views"])
    assert result["breaks"]
    assert result["definitions"]["hit rate"]


def test_tables_print_the_definitions(trace: Path) -> None:
    output = " ".join(run("replay", str(trace), "--first", "12").split())
    assert "reused tokens over all prompt tokens" in output
    assert "what broke the prefixes" in output


def test_budgets_are_kept(trace: Path, repository: Path) -> None:
    free = as_json(run("replay", str(trace), "--repo", str(repository), "--json"))
    tight = as_json(
        run("replay", str(trace), "--repo", str(repository), "--ram", "1MB", "--disk", "10MB", "--json")
    )
    assert tight["tiers"]["evicted_entries"] > 0
    assert tight["tiers"]["disk_bytes"] <= 10_000_000
    assert tight["policies"]["prefix"] == free["policies"]["prefix"]
    assert tight["policies"]["agentcache"]["reused_tokens"] < free["policies"]["agentcache"]["reused_tokens"]


class _Page(HTMLParser):
    """Collects what a page would load, and the data in it."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.data = ""
        self._in_data = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.loads += [
            found[name] or "" for name in ("src", "href") if name in found and found[name] is not None
        ]
        self._in_data = found.get("id") == "data"

    def handle_data(self, data: str) -> None:
        if self._in_data:
            self.data += data

    def handle_endtag(self, tag: str) -> None:
        self._in_data = False


def test_the_page_stands_by_itself(trace: Path, repository: Path, tmp_path: Path) -> None:
    hostile = write_lines(
        tmp_path / "hostile.jsonl",
        [
            {"messages": [{"role": "user", "content": f"</script><script>alert({i})</script> {CODE}"}]}
            for i in range(2)
        ],
    )
    out = tmp_path / "report.html"
    run("replay", str(trace), str(hostile), "--repo", str(repository), "--html", str(out))
    text = out.read_text()
    page = _Page()
    page.feed(text)
    assert all(link.startswith("#") for link in page.loads)
    assert not re.search(r"@import|url\(|fetch\(|<link|<img", text)
    assert "<script>alert" not in text
    data = json.loads(page.data)
    requests = read_traces([trace, hostile])
    assert len(data["requests"]) == len(requests)
    for one in data["requests"]:
        assert sum(one["kinds"][::2]) == one["tokens"]
        ours = one["reused"]["agentcache"]
        assert sum(ours[1::2]) == sum(piece[1] for piece in one["pieces"])
        assert sum(ours[1::2]) + sum(gap[1] for gap in one["gaps"]) == one["tokens"]
    assert text.count("<svg") >= 4


def test_a_revision_is_read_from_git(repository: Path, folder: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        subprocess.run(["git", *identity, *arguments], cwd=repository, check=True, capture_output=True)

    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "one")
    (repository / "counting.py").write_text("nothing = 0\n")
    streams = Streams(str(folder), 4096)
    with Source([f"{repository}@HEAD"], streams) as then, Source([str(repository)], streams) as now:
        assert CODE.split("\n")[0] in then.lines()
        assert "nothing = 0" not in then.lines()
        assert "nothing = 0" in now.lines()
    for wrong, said in (
        (f"{repository}@none", "cannot read none"),
        (str(repository / "x"), "does not exist"),
    ):
        result = runner.invoke(app, ["replay", __file__, "--repo", wrong])
        assert result.exit_code != 0
        with pytest.raises(Exception, match=said):
            Source([wrong], streams)


@pytest.mark.parametrize("numbers", NUMBERS)
@pytest.mark.parametrize("escape", ESCAPES)
def test_views_are_recognised_in_what_they_show(
    numbers: str, escape: str, repository: Path, folder: Path
) -> None:
    view = View(numbers, escape)
    with Source([str(repository)], Streams(str(folder), 4096)) as source:
        index = source._indexes[0]
        data, blocks = view.show(*index.snapshot("counting.py"))
        assert b"".join(data[block.start_byte : block.end_byte] for block in blocks) == data
        text = data.decode()
        shown = f'{{"output": "{text}"}}' if escape else text
        votes = recognise(shown, source.lines())
    if view == View():
        assert not votes
    else:
        found = votes.most_common(1)[0][0]
        # without a character that the two escapes write differently they are the same
        assert found == view or (found.numbers == numbers and found.escape.startswith("json"))


@pytest.mark.parametrize(
    ("name", "requirement", "prefix", "least"),
    [
        ("repoagent-requests", "requests==2.34.2", 0.038, 0.96),
        ("repoagent-itsdangerous", "itsdangerous==2.2.0", 0.050, 0.95),
    ],
)
def test_recorded_documentation_runs(
    name: str, requirement: str, prefix: float, least: float, folder: Path, sources_of: Callable[[str], Path]
) -> None:
    requests = read_traces(real_trace(name))
    with Source([str(sources_of(requirement))], Streams(str(folder), 8192)) as source:
        policies = report(replay(requests, folder, source), "", [])["policies"]
    assert policies["prefix"]["hit_rate"] == pytest.approx(prefix, abs=0.01)
    assert policies["agentcache"]["hit_rate"] >= least
    assert policies["agentcache"]["recomputed_rate"] <= 0.12


def test_recorded_second_sessions(folder: Path, sources_of: Callable[[str], Path]) -> None:
    """Of what prefix caching misses in an agent's second session, nearly all is reused."""
    recorded = [
        real_trace(f"{client}-itsdangerous", f"{client}-itsdangerous-s2")
        for client in ("qwen-code", "codex", "mini-swe-agent")
    ]
    with Source([str(sources_of("itsdangerous==2.2.0"))], Streams(str(folder), 8192)) as source:
        for paths in recorded:
            missed = replay(read_traces(paths), folder, source).missed[paths[1].name]
            assert missed.reused >= 0.95 * missed.tokens


def test_the_index_alone_is_less_than_with_what_was_learned(trace: Path, repository: Path) -> None:
    alone = as_json(run("replay", str(trace), "--repo", str(repository), "--index-only", "--json"))
    everything = as_json(run("replay", str(trace), "--repo", str(repository), "--json"))
    assert alone["background"]["learned_tokens"] == 0
    assert alone["background"]["views"] == []
    rates = [one["policies"]["agentcache"]["hit_rate"] for one in (alone, everything)]
    assert alone["policies"]["prefix"]["hit_rate"] < rates[0] < rates[1]
