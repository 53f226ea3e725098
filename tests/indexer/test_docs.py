"""docs/indexer.md says what is so: its code runs, and it names every command, language and reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from agentcache.cli import index_commands
from agentcache.indexer.languages import GRAMMARS, SECTIONED
from agentcache.indexer.policy import REASONS
from tests.indexer.conftest import Repository

TEXT = (Path(__file__).parents[2] / "docs" / "indexer.md").read_text()


def test_its_code_runs(repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository.write("a.py", "x = 1\n")
    monkeypatch.chdir(repository.root)
    monkeypatch.setenv("AGENTCACHE_HOME", str(tmp_path / "home"))
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    exec(compile(code, "docs/indexer.md", "exec"), {})


def test_it_names_every_command() -> None:
    app = typer.Typer()
    index_commands.register(app)
    names = {command.name for command in app.registered_commands}
    assert names == set(re.findall(r"`agentcache (\w+)(?: [^`]*)?` \|", TEXT))
    for command in app.registered_commands:
        assert command.callback is not None
        assert command.callback.__doc__


def test_it_names_every_language_and_reason() -> None:
    spelled = {"csharp": "c#", "cpp": "c++"}
    text = TEXT.lower()
    for language in (*(row.name for row in GRAMMARS), *SECTIONED):
        assert spelled.get(language, language) in text
    assert all(f"`{reason}`" in TEXT for reason in REASONS)


def test_a_grammar_is_a_dependency_and_the_other_way_round() -> None:
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    wheels = set(re.findall(r'"(tree-sitter-[\w-]+)>=', project))
    assert wheels == {row.module.replace("_", "-") for row in GRAMMARS}


def test_every_query_belongs_to_a_language() -> None:
    folder = Path(index_commands.__file__).parents[1] / "indexer" / "queries"
    assert {path.stem for path in folder.iterdir()} == {query for row in GRAMMARS for query in row.queries}
