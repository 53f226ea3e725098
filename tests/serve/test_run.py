"""`agentcache run` without a server: what a program is given, and how it ends."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from agentcache.errors import UsageError
from agentcache.launch.environment import Endpoint, environment
from agentcache.launch.program import run_program

ENDPOINT = Endpoint("http://127.0.0.1:9", 'a "model"', 8192, "sekret")
PAGES = sorted((Path(__file__).resolve().parents[2] / "docs" / "clients").glob("*.md"))


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_the_variables_of_both_apis_name_the_endpoint(tmp_path: Path) -> None:
    given = environment(ENDPOINT, tmp_path)
    assert given["OPENAI_BASE_URL"] == given["OPENAI_API_BASE"] == "http://127.0.0.1:9/v1"
    assert given["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:9"
    assert given["OPENAI_API_KEY"] == given["ANTHROPIC_AUTH_TOKEN"] == "sekret"
    assert given["ANTHROPIC_API_KEY"] == "", "the user's own key does not travel"


def test_settings_files_can_be_read_and_leave_room_for_a_prompt(tmp_path: Path) -> None:
    given = environment(ENDPOINT, tmp_path)
    opencode = json.loads(Path(given["OPENCODE_CONFIG"]).read_text())
    model = opencode["provider"]["agentcache"]["models"]['a "model"']
    assert model["limit"] == {"context": 8192, "output": 2048}
    codex = tomllib.loads((Path(given["CODEX_HOME"]) / "config.toml").read_text())
    assert codex["model"] == 'a "model"'
    assert codex["model_providers"]["agentcache"]["wire_api"] == "responses"
    qwen = json.loads(Path(given["QWEN_CODE_SYSTEM_SETTINGS_PATH"]).read_text())
    assert qwen["model"]["generationConfig"]["samplingParams"]["max_tokens"] == 2048
    for name in ("OPENCODE_CONFIG", "CODEX_HOME", "CLAUDE_CONFIG_DIR", "MSWEA_GLOBAL_CONFIG_DIR"):
        assert Path(given[name]).is_relative_to(tmp_path), "not among the user's own"


def test_a_program_gets_them_and_its_folder_goes_away(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    code = f"import json, os, pathlib; pathlib.Path({str(out)!r}).write_text(json.dumps(dict(os.environ)))"
    assert run_program(python(code), ENDPOINT, lambda line: None) == 0
    seen = json.loads(out.read_text())
    assert seen["OPENAI_BASE_URL"] == ENDPOINT.base_url
    assert seen["PATH"] == os.environ["PATH"], "the rest is as it was"
    assert not Path(seen["CODEX_HOME"]).exists()


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("import sys; sys.exit(7)", 7),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", 128 + 15),
    ],
)
def test_the_exit_status_is_the_programs(code: str, status: int) -> None:
    assert run_program(python(code), ENDPOINT, lambda line: None) == status


def test_a_program_that_does_not_exist_is_one_line() -> None:
    with pytest.raises(UsageError, match="no-such-program"):
        run_program(["no-such-program"], ENDPOINT, lambda line: None)


def test_ctrl_c_is_the_programs(tmp_path: Path) -> None:
    """It may finish in its own way; we wait for it, and end as it does."""
    program = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGINT, lambda *_: (print('in its own way', flush=True), sys.exit(3)))\n"
        "print('begun', flush=True)\n"
        "time.sleep(60)\n"
    )
    code = (
        "import sys\n"
        "from agentcache.launch.environment import Endpoint\n"
        "from agentcache.launch.program import run_program\n"
        "endpoint = Endpoint('http://x', 'm', 1000)\n"
        f"sys.exit(run_program([sys.executable, '-c', {program!r}], endpoint, lambda line: None))\n"
    )
    process = subprocess.Popen(python(code), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(2)
    assert process.stdout.read() == "in its own way\n"
    assert process.wait(30) == 3
    process.stdout.close()


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.stem != "README"], ids=lambda page: page.stem
)
def test_a_page_begins_with_the_command_that_the_script_runs(page: Path) -> None:
    sys.path.insert(0, str(page.parents[2] / "benchmarks"))
    try:
        import clients
    finally:
        sys.path.pop(0)
    assert page.stem in {client.name for client in clients.CLIENTS}, "make clients runs every page"
    command = clients.command_of(page.stem)
    assert shlex.join(command)
    for flag in ("api.openai.com", "sk-"):
        assert flag not in " ".join(command)


def test_every_client_has_a_page() -> None:
    names = {page.stem for page in PAGES}
    listed = (PAGES[0].parent / "README.md").read_text()
    assert {
        "README",
        "repoagent",
        "aider",
        "mini-swe-agent",
        "opencode",
        "qwen-code",
        "codex",
        "claude-code",
    } <= names
    assert all(f"({name}.md)" in listed for name in names - {"README"})
