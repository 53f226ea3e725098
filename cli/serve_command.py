"""`agentcache serve`."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

MODEL_HELP = "A registered name (smollm2-135m), a local folder, or a hub id."


def register(app: typer.Typer) -> None:
    app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": False})(serve)


def serve(
    context: typer.Context,
    path: Annotated[Path | None, typer.Argument(help="Repository to index and keep warm.")] = None,
    model: Annotated[str, typer.Option(help=MODEL_HELP)] = "smollm2-135m",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port for every API.", min=0, max=65535)] = 8100,
    mode: Annotated[str, typer.Option(help="What a request gets that does not ask: fast or exact.")] = "fast",
    ram: Annotated[str, typer.Option(help="Budget of the RAM tier.")] = "2GB",
    disk: Annotated[str, typer.Option(help="Budget of the disk tier.")] = "20GB",
    disk_codec: Annotated[
        str, typer.Option(help="How the disk tier writes: raw, int8, fp8, mixed or int4.")
    ] = "raw",
    remote: Annotated[str, typer.Option(help="Remote tier: s3://bucket/prefix or redis://host:6379/0.")] = "",
    kv_space: Annotated[int, typer.Option(help="vLLM's page pool on CPU, GiB.", min=1)] = 2,
    boundary_tokens: Annotated[int, typer.Option(help="Tokens recomputed at each seam.", min=0)] = 16,
    warm: Annotated[bool, typer.Option(help="Warm the repository in the background.")] = True,
    learn_budget: Annotated[
        str,
        typer.Option(help="Most bytes learned from traffic: prompts that come back, answers; 0: nothing."),
    ] = "1GB",
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show vLLM's own log.")] = False,
) -> None:
    """Start vLLM with agentcache, index PATH, and keep its caches warm. Arguments after `--` go to vLLM."""
    from agentcache.cli.model_commands import progress_shown
    from agentcache.engine import split_extra
    from agentcache.models import resolve
    from agentcache.serve import ServeOptions, Server
    from agentcache.settings import EngineSettings
    from agentcache.store.units import parse_bytes

    settings = EngineSettings(
        mode=mode,  # type: ignore[arg-type]
        ram_bytes=parse_bytes(ram),
        disk_bytes=parse_bytes(disk),
        boundary_tokens=boundary_tokens,
        disk_codec=disk_codec,
        remote_url=remote,
    )
    with progress_shown(model) as progress:
        folder = resolve(model, progress)
    options = ServeOptions(
        model=model,
        folder=folder,
        roots=(path,) if path is not None else (),
        host=host,
        port=port,
        kv_gib=kv_space,
        settings=settings,
        extra=split_extra(context.args),
        warm=warm,
        learn_bytes=parse_bytes(learn_budget),
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does
    with Server(options, typer.echo, typer.echo if verbose else None) as server:
        typer.echo(f"engine: starting {model} on port {server.engine.port} (about half a minute)")
        server.wait_ready()
        typer.echo(f"ready: OpenAI base URL {server.engine.url}/v1, Anthropic base URL {server.engine.url}")
        if options.warm or options.learn_bytes:
            server.start_background()
        server.wait_ended()
