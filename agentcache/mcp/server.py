"""The MCP server: six tools of the official SDK over `Tools`. Their descriptions are written for agents.

Text that is read is one text content, byte for byte what is cached; where it is from and whether it is warm stands in
the answer's `_meta.agentcache`, which clients do not put into prompts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, TypeVar

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, TextContent, ToolAnnotations
from pydantic import Field

from agentcache import __version__
from agentcache.context import Context, Item
from agentcache.context.assemble import MAX_ITEMS, Order
from agentcache.errors import AgentCacheError
from agentcache.mcp.tools import MAX_MAP_TOKENS, MAX_RESULTS, Tools

T = TypeVar("T")

_NUM_THREADS = 2
"""Each keeps a connection to every index."""

INSTRUCTIONS = (
    "Read this code base through these tools: the model server keeps the KV cache of what they answer ready, so a "
    "prompt with it starts much sooner than one with text from a shell. Start with repo_map or find_symbol, then "
    "read_block. "
    "A reference is path, path#Name, path#Class.method or path:10-80."
)
_REFERENCE = (
    "path#Name, path#Class.method, path:10-80 (lines) or path; with several repositories, repository:path…"
)
_Limit = Annotated[int, Field(description=f"Most lines to answer with, 1 to {MAX_RESULTS}.")]


def make_server(context: Context, wait_ready: Callable[[], None] = lambda: None) -> MCPServer[Any]:
    """A server that answers from `context`, not yet running. wait_ready: called before each answer, in a thread."""
    server: MCPServer[Any] = MCPServer(
        "agentcache", version=__version__, instructions=INSTRUCTIONS, log_level="CRITICAL"
    )
    handlers = _Handlers(Tools(context), wait_ready)
    annotations = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
    for tool in (
        handlers.find_symbol,
        handlers.read_block,
        handlers.read_file,
        handlers.references,
        handlers.repo_map,
        handlers.context,
    ):
        # Unstructured: clients show an agent structured answers as JSON, which is not what is warm.
        server.add_tool(tool, annotations=annotations, structured_output=False)
    return server


class _Handlers:
    """The tools as the SDK registers them: arguments by name, answers as content."""

    def __init__(self, tools: Tools, wait_ready: Callable[[], None]) -> None:
        self._tools = tools
        self._wait_ready = wait_ready
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="agentcache-mcp")

    async def find_symbol(
        self, name: Annotated[str, Field(description="A name, or Class.method.")], limit: _Limit = 20
    ) -> str:
        """Find where a function, method, class or constant is defined.

        One line a definition: `path:10-20  kind name`, where `path:10-20` is a reference that read_block takes. If
        there is none, similar names are told.
        """
        return await self._answer(lambda: self._tools.find_symbol(name, limit))

    async def read_block(self, reference: Annotated[str, Field(description=_REFERENCE)]) -> CallToolResult:
        """Read one definition (a class with all of its methods), or the blocks that hold some lines.

        The text is exactly the file's. Whole blocks are given: a line in the middle of a function gives the function.
        """
        return _read(await self._answer(lambda: self._tools.read_block(reference)))

    async def read_file(
        self,
        path: Annotated[str, Field(description="A file below an indexed folder.")],
        start_line: Annotated[int | None, Field(description="First line, from 1.")] = None,
        end_line: Annotated[int | None, Field(description="Last line.")] = None,
    ) -> CallToolResult:
        """Read a file exactly as it stands, without line numbers; given lines, the whole blocks that hold them.

        For one function or class, read_block is shorter.
        """
        return _read(await self._answer(lambda: self._tools.read_file(path, start_line, end_line)))

    async def references(
        self,
        name: Annotated[str, Field(description="A name, without what it belongs to.")],
        limit: _Limit = 50,
    ) -> str:
        """Find where a name is called, imported, inherited from or used as a type.

        One line a mention, important files first: `path:line  in kind name: source line`, where `path:line` is a
        reference that read_block takes.
        """
        return await self._answer(lambda: self._tools.references(name, limit))

    async def repo_map(
        self,
        token_budget: Annotated[int, Field(description=f"Most tokens, 50 to {MAX_MAP_TOKENS}.")] = 2000,
        path: Annotated[str, Field(description="Only below this folder or file; empty for all.")] = "",
    ) -> str:
        """See what there is: a good first call.

        Files that the rest leans on come first, each with its classes, functions and methods and their lines. A path
        shows one folder or file in full.
        """
        return await self._answer(lambda: self._tools.repo_map(token_budget, path))

    async def context(
        self,
        references: Annotated[list[str], Field(description=_REFERENCE, max_length=MAX_ITEMS)],
        token_budget: Annotated[
            int | None, Field(description="Most tokens in all; what has no room is left out, and named.")
        ] = None,
        order: Annotated[
            Order,
            Field(description="stable: the same however you ask, best for the cache; given; or importance."),
        ] = "stable",
    ) -> CallToolResult:
        """Read several things at once, each exactly as it stands, joined into one text within a budget of tokens."""
        assembled = await self._answer(lambda: self._tools.context(references, token_budget, order))
        told = assembled.to_dict()
        texts = [told.pop("text")]
        if assembled.left_out:
            names = ", ".join(f"{item.ref} ({item.tokens} tokens)" for item in assembled.left_out)
            texts.append(f"left out, no room in the budget: {names}")
        return _result(texts, told)

    async def _answer(self, work: Callable[[], T]) -> T:
        """What `work` returns, from a thread; an error of ours is the tool's error, in its own words."""

        def ready_work() -> T:
            self._wait_ready()
            return work()

        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, ready_work)
        except AgentCacheError as error:
            raise ToolError(" ".join(str(error).split())) from error


def _read(item: Item) -> CallToolResult:
    return _result([item.text], item.to_dict())


def _result(texts: list[str], told: dict[str, Any]) -> CallToolResult:
    return CallToolResult(
        content=[TextContent(type="text", text=text) for text in texts], _meta={"agentcache": told}
    )
