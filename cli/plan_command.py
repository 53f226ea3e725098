"""`agentcache plan`: what keeping text warm takes, before anything is computed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from agentcache.capacity.plan import Amount

_GIGA = 10**9


def register(app: typer.Typer) -> None:
    app.command()(plan)


def plan(
    repo: Annotated[
        list[str] | None, typer.Argument(metavar="PATH[@REV]...", help="Repositories; or give --documents.")
    ] = None,
    model: Annotated[
        str, typer.Option(help="Name, folder, or a known shape (llama-3.1-70b, ...).")
    ] = "smollm2-135m",
    documents: Annotated[int | None, typer.Option(min=1, help="A corpus instead of a repository.")] = None,
    pages: Annotated[int, typer.Option(min=1, help="Pages of a document.")] = 10,
    tokens_per_page: Annotated[int, typer.Option(min=1, help="650 is a page of 500 English words.")] = 650,
    tokenizer: Annotated[
        str, typer.Option(metavar="MODEL", help="Counts a repository's tokens where the model is a shape.")
    ] = "smollm2-135m",
    tflops: Annotated[
        float | None, typer.Option(min=0.001, help="Speed of prefill; default: this CPU's, estimated.")
    ] = None,
    codec: Annotated[str, typer.Option(help="How tiers keep entries.")] = "raw",
    ram: Annotated[str | None, typer.Option(metavar="SIZE", help="Budget of the RAM tier.")] = None,
    disk: Annotated[str | None, typer.Option(metavar="SIZE", help="Budget of the disk tier.")] = None,
    ram_gbps: Annotated[float, typer.Option(min=0.001, help="GB/s entries are read from RAM.")] = 8.0,
    disk_gbps: Annotated[float, typer.Option(min=0.001, help="GB/s entries are read from disk.")] = 1.2,
    remote_gbps: Annotated[float, typer.Option(min=0.001, help="GB/s from a remote tier.")] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Bytes a token and in all, time to warm, when it pays, and what fits, from a model's config."""
    from agentcache.capacity.plan import Tier, machine_flops
    from agentcache.capacity.plan import plan as make
    from agentcache.capacity.shapes import shape_named
    from agentcache.errors import UsageError
    from agentcache.store.codecs import CODECS
    from agentcache.store.units import parse_bytes

    if codec not in CODECS:
        raise UsageError(f"{codec!r} is not a codec: use one of {', '.join(CODECS)}")
    shape = shape_named(model)
    if shape.latent and codec != "raw":
        raise UsageError(f"{model} has a latent cache: only the codec raw fits it")
    amount = _amount(repo or [], documents, pages, tokens_per_page, model, tokenizer)
    tiers = [
        Tier("ram", ram_gbps * _GIGA, parse_bytes(ram) if ram else None),
        Tier("disk", disk_gbps * _GIGA, parse_bytes(disk) if disk else None),
        Tier("remote", remote_gbps * _GIGA),
    ]
    result = make(shape, amount, tflops * 10**12 if tflops else machine_flops(), tiers, codec)
    if as_json:
        typer.echo(json.dumps(result))
    else:
        _print(result)


def _amount(
    repo: list[str], documents: int | None, pages: int, tokens_per_page: int, model: str, tokenizer: str
) -> Amount:
    from agentcache.capacity.amounts import of_corpus, of_repository
    from agentcache.capacity.shapes import SHAPES
    from agentcache.context.streams import max_position
    from agentcache.errors import UsageError
    from agentcache.models import resolve

    if documents is not None:
        if repo:
            raise UsageError("give repositories or --documents, not both")
        return of_corpus(documents, pages, tokens_per_page)
    folder = Path(resolve(tokenizer if model in SHAPES else model))
    return of_repository(repo or ["."], folder, max_position(str(folder)) or 32_768)


def _print(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from agentcache.store.units import human_bytes

    console = Console()
    console.print(
        f"{result['model']}; {result['what']}: {result['tokens']:,} tokens, {result['stored_tokens']:,} in entries",
        highlight=False,
        markup=False,
    )
    sizes = Table(title="entries", title_justify="left")
    for name in ("codec", "bytes a token", "all"):
        sizes.add_column(name, justify="left" if name == "codec" else "right")
    for codec, size in result["bytes_per_token"].items():
        sizes.add_row(codec, f"{size:,.0f}", human_bytes(result["bytes"][codec]))
    console.print(sizes)
    console.print(
        f"to warm: {_duration(result['warm_seconds'])} at {result['prefill_tokens_per_s']:,.0f} tokens a second "
        f"({result['flops_per_s'] / 10**12:.3g} TFLOP/s, an estimate)",
        highlight=False,
    )
    tiers = Table(title=f"tiers, codec {result['codec']}", title_justify="left")
    for name in (
        "tier",
        "read tok/s",
        "over prefill",
        "pays from use",
        "holds it",
        "largest repository",
    ):
        tiers.add_column(name, justify="left" if name == "tier" else "right")
    for name, tier in result["tiers"].items():
        uses = tier["break_even_uses"]
        known = "largest_tokens" in tier
        largest = (
            f"{tier['largest_tokens']:,} tokens, {human_bytes(tier['largest_source_bytes'])}" if known else ""
        )
        tiers.add_row(
            name,
            f"{tier['read_tokens_per_s']:,.0f}",
            f"{tier['speed_over_prefill']:,.1f}x",
            "never" if uses is None else f"{uses}.",
            ("yes" if tier["fits"] else "no") if known else "",
            largest,
        )
    console.print(tiers)


def _duration(seconds: float) -> str:
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} seconds"
