"""`agentcache replay`: how much of recorded traffic is reused, by which policy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from agentcache.replay.replay import Run
    from agentcache.replay.tiers import Tiers
    from agentcache.replay.trace import Request


def register(app: typer.Typer) -> None:
    app.command()(replay)


def replay(
    traces: Annotated[
        list[Path], typer.Argument(metavar="TRACE...", help="JSONL, .traj, traj.json; or gzip of it.")
    ],
    repo: Annotated[
        list[str] | None, typer.Option(metavar="PATH[@REV]", help="A repository that is indexed; repeatable.")
    ] = None,
    tokenizer: Annotated[
        str, typer.Option(metavar="MODEL", help="Model whose tokenizer and chat template are used.")
    ] = "smollm2-135m",
    ram: Annotated[str | None, typer.Option(metavar="SIZE", help="Budget of the RAM tier, e.g. 4GB.")] = None,
    disk: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Budget of the disk tier, e.g. 50GB.")
    ] = None,
    first: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Only the first N requests; with --live, of those that fit."),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="OUT", help="Write the report as one HTML file.")
    ] = None,
    live: Annotated[
        str | None, typer.Option(metavar="URL", help="Send the requests to a running server and measure.")
    ] = None,
    index_only: Annotated[
        bool,
        typer.Option("--index-only", help="Only the repository's own entries: no views, nothing learned."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as one JSON object.")] = False,
) -> None:
    """Replay recorded requests: which tokens are reused by prefix caching, by chunks, and by agentcache."""
    from rich.console import Console

    from agentcache.cli.model_commands import progress_shown
    from agentcache.models import resolve
    from agentcache.replay.folder import local_folder
    from agentcache.replay.formats import read_traces

    console = Console(stderr=as_json)
    requests = read_traces(traces)
    with progress_shown(tokenizer) as shown:
        folder = local_folder(resolve(tokenizer, shown))
    if live is not None:
        from agentcache.cli.live_output import run_live

        run_live(console, requests, live, folder, first, as_json)
        return
    run = _offline(console, requests[:first], folder, repo or [], _tiers(folder, ram, disk), not index_only)
    _show(console, run, tokenizer, repo or [], html, as_json)


def _offline(
    console: Console,
    requests: Sequence[Request],
    folder: Path,
    repo: list[str],
    tiers: Tiers | None,
    learn: bool,
) -> Run:
    from agentcache.context.streams import Streams, max_position
    from agentcache.replay.replay import replay as run_replay
    from agentcache.replay.source import Source

    streams = Streams(str(folder), max_position(str(folder)) or 32_768)
    with console.status("indexing") as line, Source(repo, streams) as source:
        return run_replay(
            requests,
            folder,
            source if repo else None,
            tiers,
            learn,
            lambda done: line.update(f"replaying: {done} of {len(requests)} requests"),
        )


def _show(
    console: Console, run: Run, tokenizer: str, repo: list[str], html: Path | None, as_json: bool
) -> None:
    from agentcache.cli.replay_output import print_report
    from agentcache.errors import UsageError
    from agentcache.replay.report import report

    result: dict[str, Any] = report(run, tokenizer, repo)
    if html is not None:
        from agentcache.replay.page import page

        try:
            html.write_text(page(run, result), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"the report cannot be written to {html}: {error.strerror}") from error
    if as_json:
        typer.echo(json.dumps(result))
    else:
        print_report(console, result)
    if html is not None:
        console.print(f"report: {html}", highlight=False)


def _tiers(folder: Path, ram: str | None, disk: str | None) -> Tiers | None:
    """Tiers with the budgets given; one that is not given has no limit."""
    if ram is None and disk is None:
        return None
    from agentcache.capacity.model import ModelShape
    from agentcache.replay.tiers import Tiers
    from agentcache.store.units import parse_bytes

    unlimited = 1 << 62
    budgets = [parse_bytes(text) if text is not None else unlimited for text in (ram, disk)]
    return Tiers(budgets[0], budgets[1], ModelShape.of_folder(folder).bytes_per_token())
