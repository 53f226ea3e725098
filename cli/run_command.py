"""`agentcache run`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentcache.cli.passing import PassingCommand, passed_on
from agentcache.cli.serve_command import DEFAULT_MODEL, MODEL_HELP

if TYPE_CHECKING:
    from agentcache.launch.environment import Endpoint


def register(app: typer.Typer) -> None:
    app.command(cls=PassingCommand)(run)


def run(
    context: typer.Context,
    path: Annotated[
        Path, typer.Option("--repo", help="Repository that a server started here keeps warm.")
    ] = Path("."),
    model: Annotated[str, typer.Option(help=f"For a server started here. {MODEL_HELP}")] = DEFAULT_MODEL,
    port: Annotated[int, typer.Option(help="Where the server is, or is started.", min=1, max=65535)] = 8100,
    url: Annotated[
        str, typer.Option(metavar="URL", help="A server that runs elsewhere; none is started then.")
    ] = "",
    api_key: Annotated[
        str, typer.Option(envvar="AGENTCACHE_API_KEY", help="The server's key.", show_envvar=True)
    ] = "",
    engine: Annotated[
        str, typer.Option(help="Arguments for vLLM, if a server is started: '--max-model-len 8192'.")
    ] = "",
) -> None:
    """Run COMMAND (behind `--`) so that it talks to the endpoint, starting `serve` first if none runs.

    Sets the environment and gives the program temporary settings; your own are not touched. Ends with its exit status.
    """
    from agentcache.errors import EngineError, UsageError
    from agentcache.launch.program import endpoint_at, run_program

    command = passed_on(context)
    if not command:
        raise UsageError("say what to run: agentcache run -- COMMAND...")
    address = url.rstrip("/").removesuffix("/v1") or f"http://127.0.0.1:{port}"
    endpoint = endpoint_at(address, api_key)
    if endpoint is not None:
        raise typer.Exit(run_program(command, endpoint, _say))
    if url:
        raise EngineError(f"no server answers at {address}; start one there, or leave --url away")
    raise typer.Exit(_with_server(command, path, model, port, api_key, engine))


def _with_server(
    command: tuple[str, ...], path: Path, model: str, port: int, api_key: str, engine: str
) -> int:
    """Start a server, run the command, end the server."""
    import shlex
    import signal

    from agentcache.cli.model_commands import progress_shown
    from agentcache.errors import EngineError
    from agentcache.launch.program import endpoint_at, run_program
    from agentcache.models import resolve
    from agentcache.serve import ServeOptions, Server

    with progress_shown(model) as progress:
        folder = resolve(model, progress)
    options = ServeOptions(
        model=model,
        folder=folder,
        roots=(path,),
        port=port,
        extra=tuple(shlex.split(engine)),
        api_key=api_key,
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with Server(options, _say) as server:
        _say(f"engine: starting {model} at {server.engine.url} (about half a minute)")
        server.wait_ready()
        server.start_background()
        endpoint: Endpoint | None = endpoint_at(server.engine.url, api_key)
        if endpoint is None:
            raise EngineError("the engine that was just started does not answer")
        return run_program(command, endpoint, _say)


def _say(line: str) -> None:
    """On stderr: stdout is the command's."""
    typer.echo(f"agentcache: {line}", err=True)
