"""The README says what is true: its commands run, its examples run, its figures are the measured ones."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.engine.serving import Server

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    """The fenced blocks of one language."""
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def runner() -> ModuleType:
    sys.path.insert(0, str(ROOT / "benchmarks"))  # as for a script of that folder
    try:
        return importlib.import_module("run")
    finally:
        sys.path.pop(0)


def test_the_first_two_commands_are_targets_of_the_makefile() -> None:
    assert README.split("\n\n")[1].split()[:2] == ["make", "demo"]
    targets = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in re.findall(r"make ([a-z]+)", README):
        assert f"make {name}" in targets


def test_every_agentcache_command_and_option_exists() -> None:
    mentioned = re.findall(
        r"agentcache ((?:[a-z]+ ?)+)((?:[^\n`#]*)?)", "\n".join([*blocks("bash"), *code_spans()])
    )
    assert len(mentioned) >= 6
    for words, rest in mentioned:
        command = words.split()[: 2 if words.startswith(("model", "store", "trace")) else 1]
        shown = run_command(*command, "--help")
        for option in re.findall(r"--[a-z-]+", rest.split(" -- ")[0]):
            assert option in shown, f"agentcache {' '.join(command)} has no {option}"


def code_spans() -> list[str]:
    return re.findall(r"`(agentcache [^`]+)`", README)


def run_command(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "agentcache.cli", *arguments],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return done.stdout


def test_the_commands_that_need_no_server_run(model_folder: str) -> None:
    assert "smollm2-135m" in run_command("model", "pull", "smollm2-135m") + run_command("model", "ls")
    assert "files" in run_command("index", ".")
    run_command("store", "status")


@pytest.mark.engine
@pytest.mark.parametrize("number", [0, 1], ids=["openai", "anthropic"])
def test_the_examples_run(server: Server, number: int, capsys: pytest.CaptureFixture[str]) -> None:
    example = blocks("python")[number]
    assert "http://127.0.0.1:8100" in example
    exec(compile(example.replace("http://127.0.0.1:8100", server.client.url), "README.md", "exec"), {})
    assert capsys.readouterr().out.strip()


def test_the_figures_are_the_measured_ones() -> None:
    run = runner()
    shown = README.split(run.BEGIN)[1].split(run.END)[0].strip()
    assert shown == run.table()
    assert "not measured" not in shown


def test_the_files_it_links_to_exist() -> None:
    for name in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / name).exists(), name
