"""The MCP server through the official SDK's client, as agents start it: over stdio and over HTTP."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult, TextContent

from agentcache.context import Context
from agentcache.context.roots import Roots
from agentcache.mcp.server import make_server
from tests.context.sources import MAIN, SHAPES, write

COMMAND = (sys.executable, "-m", "agentcache.cli", "mcp")
TOOLS = {"find_symbol", "read_block", "read_file", "references", "repo_map", "context"}


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return write(tmp_path / "repo")


def texts(result: CallToolResult) -> list[str]:
    assert not result.is_error, result.content
    return [content.text for content in result.content if isinstance(content, TextContent)]


def text(result: CallToolResult) -> str:
    (only,) = texts(result)
    return only


def complaint(result: CallToolResult) -> str:
    assert result.is_error
    (content,) = result.content
    assert isinstance(content, TextContent)
    assert "\n" not in content.text
    return content.text


async def _use_every_tool(client: Client, repo: Path) -> None:
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert tools.keys() == TOOLS
    for tool in tools.values():
        assert tool.description
        assert len(tool.description) > 60
        assert tool.output_schema is None
        assert all("description" in schema for schema in tool.input_schema["properties"].values())
    found = text(await client.call_tool("find_symbol", {"name": "area"}))
    assert found == "shapes.py:12-15  method Circle.area\nshapes.py:17-20  method Square.area\n"
    block = await client.call_tool("read_block", {"reference": "shapes.py#Circle"})
    assert text(block) == "".join(SHAPES.splitlines(keepends=True)[5:15])
    assert block.meta is not None
    told = block.meta["agentcache"]
    assert (told["path"], told["start_line"], told["end_line"]) == ("shapes.py", 6, 15)
    notes = text(await client.call_tool("read_file", {"path": "notes.txt"}))
    assert notes.encode() == (repo / "notes.txt").read_bytes()  # CRLF, umlauts, no line feed at the end
    part = await client.call_tool("read_file", {"path": "shapes.py", "start_line": 14})
    assert text(part) == "".join(SHAPES.splitlines(keepends=True)[11:])
    uses = text(await client.call_tool("references", {"name": "double"}))
    assert uses == (
        "app/main.py:1  in module: from shapes import Circle, double\n"
        "app/main.py:5  in function main: print(double(Circle(3)))\n"
    )
    outline = text(await client.call_tool("repo_map", {}))
    assert outline.startswith("shapes.py\n  class Circle :6-15\n    method __init__ :9-11\n")
    assert "app/main.py\n  function main :4-5\n" in outline
    both = await client.call_tool("context", {"references": ["shapes.py", "app/main.py"]})
    assert text(both) == MAIN + SHAPES  # stable unless told otherwise


def test_every_tool_over_stdio(repo: Path) -> None:
    parameters = StdioServerParameters(
        command=COMMAND[0], args=[*COMMAND[1:], str(repo)], env=dict(os.environ)
    )

    async def main() -> None:
        async with Client(parameters) as client:
            await _use_every_tool(client, repo)
            # The index follows the files.
            (repo / "later.py").write_text("def later():\n    pass\n")
            found = await client.call_tool("find_symbol", {"name": "later"})
            assert text(found) == "later.py:1-2  function later\n"
            (repo / "later.py").write_text("def sooner():\n    pass\n\n\ndef later():\n    return 2\n")
            edited = await client.call_tool("read_block", {"reference": "later.py#later"})
            assert text(edited) == "def later():\n    return 2\n"

    anyio.run(main)


@pytest.fixture
def over_http(repo: Path) -> Iterator[str]:
    """The URL of a server that wants a key."""
    process = subprocess.Popen(
        [*COMMAND, str(repo), "--http", "--port", "0", "--key", "sesame"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.search(r"http://\S+/mcp", line)
    assert found is not None, process.communicate()
    yield found[0]
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert errors == ""


def test_every_tool_over_http_with_a_key(over_http: str, repo: Path) -> None:
    import httpx2

    assert httpx.post(over_http, json={}).status_code == 401
    assert httpx.post(over_http, json={}, headers={"Authorization": "Bearer wrong"}).status_code == 401
    # A page in a browser that had its name point at us is not a client of ours.
    elsewhere = {"Authorization": "Bearer sesame", "Host": "evil.example"}
    assert httpx.post(over_http, json={}, headers=elsewhere).status_code == 421

    async def main() -> None:
        async with (
            httpx2.AsyncClient(headers={"Authorization": "Bearer sesame"}) as session,
            Client(streamable_http_client(over_http, http_client=session)) as client,
        ):
            await _use_every_tool(client, repo)

    anyio.run(main)


def _asked(context: Context, *calls: tuple[str, dict[str, Any]]) -> list[CallToolResult]:
    """Answers of a server in this process, through its protocol."""
    results: list[CallToolResult] = []

    async def main() -> None:
        async with Client(make_server(context)) as client:
            for name, arguments in calls:
                results.append(await client.call_tool(name, arguments))

    anyio.run(main)
    return results


@pytest.mark.parametrize(
    ("tool", "arguments", "says"),
    [
        ("find_symbol", {"name": "circ"}, "nothing called circ is defined here; similar names: Circle"),
        ("find_symbol", {"name": "area", "limit": 0}, "limit is 1 to 200, not 0"),
        ("references", {"name": "nobody"}, "nothing here mentions nobody"),
        ("read_block", {"reference": "shapes.py#area"}, "is ambiguous: shapes.py:12-15 (Circle.area)"),
        ("read_block", {"reference": "../secret"}, "../secret leaves the indexed roots"),
        ("read_file", {"path": "/etc/passwd"}, "/etc/passwd is absolute"),
        ("read_file", {"path": "shapes.py", "start_line": 99}, "the file ends at line 22"),
        (
            "read_file",
            {"path": "big.py"},
            "ask for fewer lines, or for a name (repo_map of big.py lists them)",
        ),
        ("repo_map", {"token_budget": 1}, "50 to 50000 tokens, not 1"),
        ("repo_map", {"path": "nowhere"}, "no indexed file is below nowhere"),
        ("context", {"references": ["shapes.py", "x.py"]}, "x.py names no file"),
        ("context", {"references": ["shapes.py"], "token_budget": 0}, "a token budget is at least 1"),
        ("context", {"references": ["big.py"]}, "give a token_budget"),
    ],
)
def test_what_an_agent_does_wrong_is_a_tool_error_in_one_line(
    repo: Path, tool: str, arguments: dict[str, Any], says: str
) -> None:
    write(repo, **{"big.py": "".join(f"x{number} = {number}\n" for number in range(40_000))})
    with Context(repo) as context:
        (result,) = _asked(context, (tool, arguments))
    assert says in complaint(result)


def test_a_map_keeps_its_budget_and_says_what_it_left_out(tmp_path: Path) -> None:
    many = {f"pkg/m{number}.py": f"def f{number}(): pass\n" * 30 for number in range(20)}
    with Context(write(tmp_path / "repo", **many)) as context:
        maps = [("repo_map", {"token_budget": budget}) for budget in (50, 120, 400)]
        for (_, asked), result in zip(maps, _asked(context, *maps), strict=True):
            lines = text(result).splitlines(keepends=True)
            assert re.fullmatch(r"… \d+ more files: .*\n", lines[-1])
            assert context.count("".join(lines[:-1])) <= asked["token_budget"]
        (folder, file) = _asked(context, ("repo_map", {"path": "app"}), ("repo_map", {"path": "pkg/m3.py"}))
        assert text(folder) == "app/main.py\n  function main :4-5\n"
        assert text(file).count("function f3 ") == 30


def test_several_repositories(tmp_path: Path) -> None:
    roots = [write(tmp_path / name) for name in ("one", "two")]
    with Context(Roots(roots)) as context:
        context.roots.freshen()
        found, block, outline = _asked(
            context,
            ("find_symbol", {"name": "double"}),
            ("read_block", {"reference": "two:shapes.py#double"}),
            ("repo_map", {"path": "two"}),
        )
    assert text(found) == "one:shapes.py:21-22  function double\ntwo:shapes.py:21-22  function double\n"
    assert text(block) == "def double(shape):\n    return 2 * shape.area()\n"
    assert text(outline).startswith("two:shapes.py\n")
    assert "one:" not in text(outline)


def test_what_has_no_room_is_named(repo: Path) -> None:
    with Context(repo) as context:
        (result,) = _asked(
            context, ("context", {"references": ["notes.txt", "shapes.py"], "token_budget": 40})
        )
    kept, left_out = texts(result)
    assert kept.encode() == (repo / "notes.txt").read_bytes()
    assert left_out.startswith("left out, no room in the budget: shapes.py (")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere"], "nowhere does not exist"),
        ([".", "--http", "--host", "0.0.0.0"], "refusing to listen on 0.0.0.0 without a key"),
        ([".", "--engine-url", "http://127.0.0.1:9"], "does not answer"),
        ([".", "--model", "no/such/model/here"], "no/such/model/here"),
    ],
)
def test_what_a_user_does_wrong_is_one_line(repo: Path, arguments: list[str], says: str) -> None:
    done = subprocess.run(
        [*COMMAND, *arguments], cwd=repo, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
