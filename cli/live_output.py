"""`agentcache replay --live`: the measurement, and its table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from agentcache.replay.trace import Request


def run_live(
    console: Console,
    requests: Sequence[Request],
    url: str,
    folder: Path,
    most: int | None,
    as_json: bool,
) -> None:
    """Measure and print. UsageError and EngineError as in `agentcache.replay.live`."""
    from agentcache.engine_client import EngineClient
    from agentcache.replay.live import Pair, run_live, summary

    def show(pair: Pair) -> None:
        fast, exact = pair.fast, pair.exact
        console.print(
            f"request {pair.number}: {fast.prompt_tokens:,} tokens, exact {exact.ttft_s:.3f} s, "
            f"fast {fast.ttft_s:.3f} s ({exact.ttft_s / fast.ttft_s:.1f}x), "
            f"{_share(fast.reused_tokens, fast.prompt_tokens)} reused",
            highlight=False,
        )

    with EngineClient(url) as client:
        result = summary(run_live(client, requests, folder, most=most, on_pair=show))
    if as_json:
        typer.echo(json.dumps(result))
    else:
        console.print(_table(result))
    if result["interrupted"]:
        console.print(f"interrupted: the figures are those of the first {result['requests']} requests")
        raise typer.Exit(130)


def _table(result: dict[str, Any]) -> Table:
    title = f"{result['requests']} requests, {result['prompt_tokens']:,} prompt tokens, {result['model']}"
    table = Table(title=title, title_justify="left")
    for name in ("", "exact", "fast", "exact again"):
        table.add_column(name, justify="right" if name else "left")
    modes = [result[name] for name in ("exact", "fast", "again")]
    rows = (
        ("median TTFT", *(f"{m['ttft_s']:.3f} s" for m in modes)),
        ("its quartiles", *("{:.3f} to {:.3f} s".format(*m["ttft_quartiles_s"]) for m in modes)),
        ("prompt tokens a second", *(f"{m['prompt_tokens_per_s']:,.0f}" for m in modes)),
        ("hit by prefix caching", *(f"{m['prefix_hit_share']:.1%}" for m in modes)),
        ("reused from entries", *(f"{m['reused_share']:.1%}" for m in modes)),
        ("of these recomputed", *(f"{m['recomputed_share']:.1%}" for m in modes)),
    )
    for row in rows:
        table.add_row(*row)
    low, high = result["ttft_ratio_quartiles"]
    table.caption = (
        f"median of the pairs' TTFT ratios {result['ttft_ratio_median']:.1f}x (quartiles {low:.1f} to {high:.1f}), "
        f"{result['ttft_ratio_again_median']:.1f}x for the same request again, a prefix hit of all its pages; "
        f"first token the same in {result['first_token_agreement']:.0%}, mean KL {result['mean_kl']:.4f}; "
        f"{result['skipped_too_long']} requests did not fit, {result['tokenised_otherwise']} were tokenised otherwise"
    )
    return table


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "0.0%"
