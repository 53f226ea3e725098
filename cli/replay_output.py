"""A replay's report as tables in the terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table


def print_report(console: Console, result: dict[str, Any]) -> None:
    """All tables; text of prompts is shown as it is, never as markup."""
    console.print(_policies(result))
    console.print(_kinds(result))
    if len(result["traces"]) > 1:
        console.print(_traces(result))
    if result["breaks"]:
        console.print(_breaks(result))
    if result["top_blocks"]:
        console.print(_blocks(result))
    background = result["background"]
    console.print(
        f"computed in the background: {background['index_tokens']:,} tokens of the index"
        f"{_views(background['views'])}, {background['learned_tokens']:,} learned "
        f"({background['learned_rate']:.1%} of the prompt tokens)"
    )
    if "tiers" in result:
        console.print(_tiers(result["tiers"]))
    console.print(
        f"{result['requests']:,} requests, {result['prompt_tokens']:,} tokens replayed in "
        f"{result['replay_seconds']:.2f} s: {result['tokens_per_second']:,} tokens a second"
    )
    console.print(
        "[dim]" + "\n".join(f"{name}: {text}" for name, text in result["definitions"].items()) + "[/dim]"
    )


def _table(title: str, left: tuple[str, ...], right: tuple[str, ...] = ()) -> Table:
    table = Table(title=title, title_justify="left")
    for name in left:
        table.add_column(name, overflow="fold")
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _policies(result: dict[str, Any]) -> Table:
    title = f"{result['requests']:,} requests, {result['prompt_tokens']:,} prompt tokens ({escape(result['model'])})"
    table = _table(title, ("policy",), ("reused", "hit rate", "of it recomputed", "saved", "computed"))
    for name, figures in result["policies"].items():
        table.add_row(
            name,
            f"{figures['reused_tokens']:,}",
            f"{figures['hit_rate']:.1%}",
            f"{figures['recomputed_rate']:.1%}",
            f"{figures['saved_rate']:.1%}",
            f"{figures['computed_tokens']:,}",
            style="bold" if name == "agentcache" else None,
        )
    return table


def _kinds(result: dict[str, Any]) -> Table:
    names = tuple(result["policies"])
    table = _table(
        "tokens by kind, and the share of each that is reused", ("kind",), ("tokens", "share", *names)
    )
    for kind, share in result["kinds"].items():
        if share:
            by_policy = [result["policies"][name]["by_kind"][kind] for name in names]
            rates = [f"{figures['hit_rate']:.1%}" for figures in by_policy]
            table.add_row(kind, f"{by_policy[0]['prompt_tokens']:,}", f"{share:.1%}", *rates)
    return table


def _traces(result: dict[str, Any]) -> Table:
    names = tuple(result["policies"])
    table = _table("hit rate by trace", ("trace",), (*names, "missed by prefix", "of these reused"))
    for trace, figures in result["by_trace"].items():
        table.add_row(
            escape(trace),
            *(f"{figures['policies'][name]['hit_rate']:.1%}" for name in names),
            f"{figures['prefix_missed_tokens']:,}",
            f"{figures['prefix_missed_then_reused_rate']:.1%}",
        )
    return table


def _breaks(result: dict[str, Any]) -> Table:
    table = _table("what broke the prefixes", ("behind", "there is", "it was"), ("requests", "tokens lost"))
    for group in result["breaks"][:6]:
        example = group["examples"][0]
        table.add_row(
            _quoted(group["line"]),
            _quoted(example["now"]),
            _quoted(example["was"]),
            f"{group['requests']:,}",
            f"{group['lost_tokens']:,}",
        )
    return table


def _blocks(result: dict[str, Any]) -> Table:
    table = _table("what saved most", ("block",), ("tokens saved",))
    for block in result["top_blocks"][:8]:
        table.add_row(escape(block["block"]), f"{block['saved_tokens']:,}")
    return table


def _views(views: list[str]) -> str:
    return f" (also shown as {', '.join(views)})" if views else ""


def _tiers(use: dict[str, Any]) -> str:
    from agentcache.store.units import human_bytes

    return (
        f"tiers: {human_bytes(use['ram_bytes'])} of {human_bytes(use['ram_budget'])} RAM and "
        f"{human_bytes(use['disk_bytes'])} of {human_bytes(use['disk_budget'])} disk used; span tokens read: "
        f"{use['tokens_from_ram']:,} from RAM, {use['tokens_from_disk']:,} from disk; "
        f"{use['evicted_entries']:,} entries evicted for good"
    )


def _quoted(text: str) -> str:
    return escape(repr(text)[1:-1][:40])
