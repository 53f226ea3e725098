"""The `agentcache` command: collects the sub-commands and turns AgentCacheError into one line and exit code 1."""

from __future__ import annotations

import sys

import typer

from agentcache import __version__
from agentcache.cli import (
    demo_command,
    doctor_command,
    index_commands,
    mcp_command,
    model_commands,
    plan_command,
    record_command,
    replay_commands,
    run_command,
    serve_command,
    store_commands,
    trace_commands,
    warm_command,
)
from agentcache.errors import AgentCacheError

app = typer.Typer(
    help="Keep the KV cache of your code warm: order-independent reuse for coding agents, inside vLLM.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _version(show: bool) -> None:
    if show:
        typer.echo(f"agentcache {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Sub-commands below."""


for module in (
    index_commands,
    model_commands,
    store_commands,
    serve_command,
    run_command,
    demo_command,
    doctor_command,
    replay_commands,
    trace_commands,
    plan_command,
    record_command,
    warm_command,
    mcp_command,
):
    module.register(app)


def main() -> None:
    """Console entry point."""
    try:
        app()
    except AgentCacheError as error:
        typer.secho(f"agentcache: {' '.join(str(error).split())}", fg="red", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        typer.echo("agentcache: interrupted", err=True)
        sys.exit(130)
