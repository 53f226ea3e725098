"""docs/navigation.md says what is so: its Python runs, and it names every tool, order and option."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agentcache.context import inline
from agentcache.context.assemble import MAX_BYTES, MAX_ITEMS, ORDERS
from agentcache.context.inline import OPENING
from agentcache.mcp.tools import MAX_READ_BYTES
from agentcache.plugin.inline import MAX_BODY_BYTES
from tests.context.sources import MAIN, write
from tests.mcp.test_server import TOOLS

TEXT = (Path(__file__).parents[2] / "docs" / "navigation.md").read_text()


def test_its_code_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(write(tmp_path / "repo"))
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    exec(compile(code, "docs/navigation.md", "exec"), {})
    assert capsys.readouterr().out.startswith(MAIN)  # stable: by path


def test_it_names_every_tool_order_and_limit() -> None:
    assert TOOLS | set(ORDERS) <= set(re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE))
    for number in (f"{MAX_READ_BYTES >> 10} KiB", f"{MAX_BODY_BYTES >> 20} MiB", f"{MAX_BYTES >> 20} MiB"):
        assert number in TEXT
    assert f"{MAX_ITEMS:,} references" in TEXT


def test_an_agent_may_read_the_page() -> None:
    """As a tool's result it passes: nothing in it names anything."""

    def resolve(reference: str) -> str:
        from agentcache.errors import ReferenceError_

        raise ReferenceError_(reference)

    assert OPENING in TEXT
    assert inline.Inliner(resolve).text(TEXT, lenient=True) == TEXT
