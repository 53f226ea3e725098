"""`agentcache demo`."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from agentcache.demo import Pair


def register(app: typer.Typer) -> None:
    app.command()(demo)


def demo(
    path: Annotated[Path, typer.Argument(help="A repository.")] = Path("."),
    model: Annotated[str, typer.Option(help="Name, folder or hub id.")] = "smollm2-135m",
    requests: Annotated[int, typer.Option(help="How many prompts, each asked twice.", min=1, max=1000)] = 8,
    seed: Annotated[int, typer.Option(help="Chooses the files and their orders.")] = 1,
    boundary_tokens: Annotated[int, typer.Option(help="Most tokens recomputed at a seam.", min=0)] = 16,
    compiled: Annotated[
        bool, typer.Option("--compile", help="Let vLLM compile the model: a minute or two more to start.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as one JSON object, last line.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show vLLM's own log.")] = False,
) -> None:
    """Index, serve, warm; then ask about files in random order, once with full prefill and once blended."""
    import random

    from rich.console import Console
    from rich.live import Live

    from agentcache import demo as job
    from agentcache.cli.model_commands import progress_shown
    from agentcache.models import resolve
    from agentcache.serve import ServeOptions, Server
    from agentcache.settings import EngineSettings

    console = Console()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does
    with progress_shown(model) as shown:
        folder = resolve(model, shown)
    options = ServeOptions(
        model=model,
        folder=folder,
        roots=(path,),
        port=0,
        settings=EngineSettings(boundary_tokens=boundary_tokens),
        extra=("--max-model-len", "8192", *(() if compiled else ("--enforce-eager",))),
    )
    with Server(options, console.print, console.print if verbose else None) as server:
        streams = server.offline_streams(8192)
        pieces = job.choose_pieces(server.indexes[0], streams, random.Random(seed))
        console.print(f"chosen: {len(pieces)} files and methods, {sum(p.tokens for p in pieces)} tokens")
        with console.status("starting vLLM (about half a minute)"):
            server.wait_ready()
        with console.status("warming") as line:
            progress = server.warm(
                server.indexes[0],
                [piece.item for piece in pieces],
                lambda p: line.update(f"warming: {p.queued_blocks} blocks left"),
            )
        console.print(
            f"warm: {progress.warm_blocks} blocks, {progress.tokens_computed} tokens computed just now"
        )
        done: list[Pair] = []
        with Live(_table(done), console=console) as live:

            def show(pair: Pair) -> None:
                done.append(pair)
                live.update(_table(done), refresh=True)

            pairs = job.run(server.client, model, pieces, requests, seed, show)
    result = {**job.summary(pairs, model), "compiled": compiled}
    if not console.is_terminal:
        console.print()  # rich ends a live table with a line break on terminals alone
    _print_summary(console.print, result)
    if as_json:
        typer.echo(json.dumps(result))


def _table(pairs: list[Pair]) -> Table:
    from rich.table import Table

    table = Table(title="the same prompt, exact and fast", title_justify="left")
    for name in (
        "#",
        "prompt tokens",
        "reused",
        "recomputed",
        "TTFT exact",
        "TTFT fast",
        "ratio",
        "same token",
        "KL",
    ):
        table.add_column(name, justify="right")
    for number, pair in enumerate(pairs, start=1):
        table.add_row(
            str(number),
            f"{pair.prompt_tokens:,}",
            f"{pair.reused_tokens / pair.prompt_tokens:.1%}",
            f"{pair.recomputed_tokens / pair.prompt_tokens:.1%}",
            f"{pair.ttft_exact_s:.2f} s",
            f"{pair.ttft_fast_s:.2f} s",
            f"{pair.ratio:.1f}x",
            "yes" if pair.same_first_token else "no",
            f"{pair.kl:.3f}",
        )
    return table


def _print_summary(say: Any, result: dict[str, Any]) -> None:
    say(
        f"{result['requests']} prompts, {result['prompt_tokens']:,} tokens: "
        f"{result['reused_share']:.1%} reused, {result['recomputed_share']:.1%} recomputed, "
        f"{result['prefix_hit_share']:.1%} hit by prefix caching"
    )
    say(
        f"median TTFT {result['ttft_exact_s']:.2f} s with full prefill, {result['ttft_fast_s']:.2f} s blended: "
        f"{result['ttft_ratio']:.1f} times faster; first token the same in "
        f"{result['first_token_agreement']:.0%}, mean KL {result['mean_kl']:.4f}"
    )
