"""`agentcache mcp`: navigation for agents over the Model Context Protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command()(mcp)


def mcp(
    path: Annotated[
        list[Path] | None,
        typer.Argument(help="Repositories or folders to answer from.", show_default="."),
    ] = None,
    http: Annotated[
        bool, typer.Option("--http", help="Streamable HTTP on /mcp, instead of stdin and stdout.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="With --http; 0 takes a free one.")] = 8300,
    host: Annotated[str, typer.Option(help="With --http: address to listen on.")] = "127.0.0.1",
    key: Annotated[
        str,
        typer.Option(envvar="AGENTCACHE_MCP_KEY", help="With --http: what clients send as a bearer token."),
    ] = "",
    engine_url: Annotated[
        str, typer.Option(metavar="URL", help="A running `agentcache serve`, asked what is warm.")
    ] = "",
    engine_key: Annotated[
        str, typer.Option(envvar="AGENTCACHE_API_KEY", help="The API key that it wants.")
    ] = "",
    model: Annotated[
        str, typer.Option(help="Whose tokenizer counts tokens; else the engine's, else an estimate.")
    ] = "",
) -> None:
    """Serve find_symbol, read_block, read_file, references, repo_map and context to an agent, over MCP.

    What the agent reads is byte for byte what is kept warm. Agents start this themselves: over stdio it ends with them.
    """
    import signal

    from agentcache.mcp.run import McpOptions, run_http, run_stdio

    options = McpOptions(tuple(path or [Path(".")]), engine_url, engine_key, model)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if http:
        run_http(options, host, port, key, lambda url: typer.echo(f"mcp: {url}; Ctrl-C ends it"))
    else:
        run_stdio(options)
