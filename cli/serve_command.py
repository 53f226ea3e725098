"""`agentcache serve`."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Annotated

import typer

from agentcache.cli.passing import PassingCommand, passed_on

DEFAULT_MODEL = "smollm2-135m"
MODEL_HELP = "A registered name (smollm2-135m), a local folder, or a hub id."


def register(app: typer.Typer) -> None:
    app.command(cls=PassingCommand)(serve)


def serve(
    context: typer.Context,
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="PATH", help="Repositories to index and keep warm.", show_default=False),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            help=f"{MODEL_HELP} Default: {DEFAULT_MODEL}, or the engine's with --engine-url.",
            show_default=False,
        ),
    ] = "",
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
    boundary_tokens: Annotated[int, typer.Option(help="Most tokens recomputed at a seam.", min=0)] = 16,
    warm: Annotated[bool, typer.Option(help="Warm the repository in the background.")] = True,
    warm_budget: Annotated[
        str,
        typer.Option(help="Most bytes of entries that warming keeps; most of the disk tier unless given."),
    ] = "",
    learn_budget: Annotated[
        str,
        typer.Option(help="Most bytes learned from traffic: prompts that come back, answers; 0: nothing."),
    ] = "1GB",
    engine_url: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Start no engine: use the vLLM that runs there with agentcache's plug-in, and its settings.",
        ),
    ] = "",
    api_key: Annotated[
        str,
        typer.Option(
            envvar="AGENTCACHE_API_KEY",
            help="Key that clients must send. Others on this machine see it in `ps` unless it is in the environment.",
            show_envvar=True,
        ),
    ] = "",
    max_body: Annotated[str, typer.Option(help="Larger request bodies are refused.")] = "64MB",
    grace: Annotated[
        int,
        typer.Option(help="Seconds that requests may still take after Ctrl-C; a second one ends all.", min=0),
    ] = 10,
    shadow: Annotated[
        float,
        typer.Option(help="Share of blended requests to repeat as exact in idle time.", min=0, max=1),
    ] = 0.0,
    shadow_max_kl: Annotated[
        float,
        typer.Option(
            help="Blending ends when their mean KL is larger (nats, first token, 20 requests or more)."
        ),
    ] = 0.1,
    log_json: Annotated[
        bool, typer.Option("--log-json", help="One JSON object a line, one of them for each request.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show vLLM's own log.")] = False,
) -> None:
    """Start vLLM with agentcache, index each PATH, and keep its caches warm. Arguments after `--` go to vLLM."""
    from agentcache.cli.model_commands import progress_shown
    from agentcache.errors import UsageError
    from agentcache.models import resolve
    from agentcache.observe.engine_log import JSON_LOG, EngineLog
    from agentcache.serve import ServeOptions, Server
    from agentcache.settings import EngineSettings
    from agentcache.store.units import parse_bytes

    if engine_url and passed_on(context):
        raise UsageError(
            "arguments after `--` are for an engine that serve starts; with --engine-url there is none"
        )
    settings = EngineSettings(
        mode=mode,  # type: ignore[arg-type]
        ram_bytes=parse_bytes(ram),
        disk_bytes=parse_bytes(disk),
        boundary_tokens=boundary_tokens,
        disk_codec=disk_codec,
        remote_url=remote,
        max_body_bytes=parse_bytes(max_body),
        shadow=shadow,
        shadow_max_kl=shadow_max_kl,
    )
    log = EngineLog(typer.echo, verbose=verbose, as_json=log_json)
    if log_json:
        os.environ[JSON_LOG] = "1"  # the engine inherits it
    folder = ""
    if not engine_url:
        model = model or DEFAULT_MODEL
        with progress_shown(model) as progress:
            folder = resolve(model, progress)
    options = ServeOptions(
        model=model,
        folder=folder,
        roots=tuple(dict.fromkeys(paths or ())),
        host=host,
        port=port,
        kv_gib=kv_space,
        settings=settings,
        extra=passed_on(context),
        warm=warm,
        warm_bytes=parse_bytes(warm_budget) if warm_budget else None,
        learn_bytes=parse_bytes(learn_budget),
        engine_url=engine_url,
        api_key=api_key,
        grace_s=grace,
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does
    with Server(options, log.say, log) as server:
        if not engine_url:
            log.say(f"engine: starting {model} at {server.engine.url} (about half a minute)")
        server.wait_ready()
        log.say(f"ready: OpenAI base URL {server.engine.url}/v1, Anthropic base URL {server.engine.url}")
        if options.warm or options.learn_bytes:
            server.start_background()
        try:
            server.wait_ended()
        except KeyboardInterrupt:
            if not engine_url:
                log.say(f"ending: requests in flight have {grace} s; Ctrl-C again ends them at once")
            raise
