"""The report as one HTML file: no other file, no network, opens in any browser."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np

from agentcache.replay.kinds import LABELS, Kind
from agentcache.replay.outcome import Mask, Origin, Outcome
from agentcache.replay.plots import Bar, Series, bars, lines, stacked
from agentcache.replay.replay import Run, Served

_COLUMNS = 430
"""Most columns of a plot over the run: neighbours are put together in longer ones."""


def page(run: Run, result: dict[str, Any]) -> str:
    """The whole file. result: of `report(run, ...)`"""
    assets = files("agentcache.replay") / "assets"
    sections = (
        _figures(result),
        _section("Hit rate over the run", _over_run(run), _legend(result["policies"], "p-")),
        _section("agentcache, request by request", _shares(run), _share_legend()),
        _section("Tokens by kind", _by_kind(result), _kind_note()),
        _section("What broke each prefix", _breaks(result)),
        _section("Blocks that saved most", _blocks(result)),
        _section(
            "Requests", '<div id="requests"></div>', "Each has its own page: where its tokens come from."
        ),
        _section("Definitions", _definitions(result)),
    )
    title = f"agentcache replay: {', '.join(result['traces'])}"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{(assets / 'report.css').read_text()}</style></head><body>"
        f'<main id="summary"><h1>{escape(title)}</h1>{"".join(sections)}</main>'
        '<main id="request" hidden></main>'
        f'<script id="data" type="application/json">{_embedded(_requests(run))}</script>'
        f"<script>{(assets / 'report.js').read_text()}</script></body></html>\n"
    )


def _figures(result: dict[str, Any]) -> str:
    cards = "".join(
        f'<div class="card p-{name}"><h3>{name}</h3><b>{figures["hit_rate"]:.1%}</b>'
        f"<span>of it recomputed: {figures['recomputed_rate']:.1%}</span>"
        f"<span>saved: {figures['saved_rate']:.1%}</span></div>"
        for name, figures in result["policies"].items()
    )
    background = result["background"]
    repositories = ", ".join(result["repositories"]) or "none"
    views = f"; also shown as {', '.join(background['views'])}" if background["views"] else ""
    return (
        f"<p>{result['requests']:,} requests, {result['prompt_tokens']:,} prompt tokens; tokenizer and chat template "
        f"of {escape(result['model'])}; indexed: {escape(repositories)}{escape(views)}. Replayed at "
        f"{result['tokens_per_second']:,} tokens a second.</p><div class='cards'>{cards}</div>"
        f"<p class='note'>Hit rate: reused over all prompt tokens. Computed in the background: "
        f"{background['index_tokens']:,} tokens of the index and {background['learned_tokens']:,} learned "
        f"({background['learned_rate']:.1%} of the prompt tokens).</p>"
    )


def _over_run(run: Run) -> str:
    """Each point: the requests around it, weighted by their tokens."""
    window = max(1, len(run.served) // 40)
    series = []
    for name in run.tallies:
        reused = np.array([one.outcomes[name].reused.sum() for one in run.served], np.float64)
        total = np.array([len(one.prompt) for one in run.served], np.float64)
        weights = np.ones(2 * window + 1)
        rate = np.convolve(reused, weights, "same") / np.maximum(1, np.convolve(total, weights, "same"))
        # numpy's "same" is as long as the longer of the two
        rate = rate[(len(rate) - len(total)) // 2 :][: len(total)]
        series.append(Series(name, f"p-{name}", rate.tolist()))
    return lines(series, "requests")


def _shares(run: Run) -> str:
    groups = np.array_split(np.arange(len(run.served)), min(len(run.served), _COLUMNS))
    layers: dict[str, list[float]] = {"prefix hit": [], "span": [], "recomputed": []}
    for group in groups:
        chosen = [run.served[i] for i in group]
        total = sum(len(one.prompt) for one in chosen) or 1
        hit = sum(_hit_tokens(one.outcomes["agentcache"]) for one in chosen)
        reused = sum(int(one.outcomes["agentcache"].reused.sum()) for one in chosen)
        recomputed = sum(int(one.outcomes["agentcache"].recomputed.sum()) for one in chosen)
        layers["prefix hit"].append(hit / total)
        layers["span"].append((reused - hit - recomputed) / total)
        layers["recomputed"].append(recomputed / total)
    css = {"prefix hit": "o-prefix", "span": "o-index", "recomputed": "recomputed"}
    return stacked([Series(name, css[name], values) for name, values in layers.items()], "requests")


def _hit_tokens(outcome: Outcome) -> int:
    first = outcome.pieces[0] if outcome.pieces else None
    return first.stop if first is not None and first.origin is Origin.PREFIX else 0


def _by_kind(result: dict[str, Any]) -> str:
    rows = []
    for kind, share in result["kinds"].items():
        if share:
            ours = result["policies"]["agentcache"]["by_kind"][kind]
            theirs = result["policies"]["prefix"]["by_kind"][kind]
            parts = [
                ("reused by agentcache", "p-agentcache", ours["reused_tokens"]),
                ("reused by prefix caching", "p-prefix", theirs["reused_tokens"]),
            ]
            note = f"{share:.1%} of tokens; {ours['hit_rate']:.1%}, {theirs['hit_rate']:.1%}"
            rows.append(Bar(kind, ours["prompt_tokens"], parts, note))
    return bars(rows)


def _breaks(result: dict[str, Any]) -> str:
    rows = []
    for group in result["breaks"]:
        for number, example in enumerate(group["examples"]):
            first = number == 0
            cells = (
                f"<code>{escape(group['line'])}</code>" if first else "",
                f"<code>{escape(repr(example['now'])[1:-1])}</code>",
                f"<code>{escape(repr(example['was'])[1:-1])}</code>",
                f'<a href="#{example["request"]}">{example["request"]}</a>',
                f"{group['requests']:,}" if first else "",
                f"{group['lost_tokens']:,}" if first else "",
            )
            rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    head = ("behind", "there is", "in the earlier prompt", "request", "requests", "tokens behind it")
    return _html_table(head, rows)


def _blocks(result: dict[str, Any]) -> str:
    rows = [
        Bar(_short(block["block"], 44), saved, [(block["block"], "p-agentcache", saved)], f"{saved:,}")
        for block in result["top_blocks"]
        if (saved := block["saved_tokens"]) > 0
    ]
    return bars(rows, name_width=330) if rows else "<p>nothing was reused</p>"


def _definitions(result: dict[str, Any]) -> str:
    return (
        "<dl>"
        + "".join(f"<dt>{escape(a)}</dt><dd>{escape(b)}</dd>" for a, b in result["definitions"].items())
        + "</dl>"
    )


def _legend(names: Sequence[str] | dict[str, Any], prefix: str) -> str:
    return " ".join(f'<span class="key {prefix}{name}">{name}</span>' for name in names)


def _share_legend() -> str:
    keys = (
        ("o-prefix", "prefix hit"),
        ("o-index", "reused from entries"),
        ("recomputed", "recomputed at seams"),
    )
    return (
        " ".join(f'<span class="key {css}">{name}</span>' for css, name in keys) + " (the rest is computed)"
    )


def _kind_note() -> str:
    return _legend(("agentcache", "prefix"), "p-") + " of all tokens of a kind"


def _section(title: str, body: str, note: str = "") -> str:
    return f"<section><h2>{title}</h2>{f'<p class=note>{note}</p>' if note else ''}{body}</section>"


def _html_table(head: Sequence[str], rows: Sequence[str]) -> str:
    names = "".join(f"<th>{name}</th>" for name in head)
    return f"<table><thead><tr>{names}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else "…" + text[1 - limit :]


def _requests(run: Run) -> dict[str, Any]:
    """What the requests' pages show, compactly: runs are flat lists [start, length, start, length, ...]."""
    labels: dict[str, int] = {}
    rows = [_request(one, labels) for one in run.served]
    return {
        "kinds": [LABELS[kind] for kind in Kind],
        "policies": list(run.tallies),
        "labels": list(labels),
        "requests": rows,
    }


def _request(one: Served, labels: dict[str, int]) -> dict[str, Any]:
    ours = one.outcomes["agentcache"]
    changes = np.flatnonzero(np.diff(one.kinds)) + 1
    bounds = [0, *changes.tolist(), len(one.kinds)]
    pieces = [
        [
            piece.start,
            piece.stop - piece.start,
            piece.origin.value,
            labels.setdefault(piece.label, len(labels)),
            int(ours.recomputed[piece.start : piece.stop].sum()),
            one.prompt.excerpt(piece.start, piece.stop, 90),
        ]
        for piece in ours.pieces
    ]
    gaps = _flat(~ours.reused)
    return {
        "number": one.prompt.request.number,
        "trace": one.prompt.request.source,
        "tokens": len(one.prompt),
        "reused": {name: _flat(outcome.reused) for name, outcome in one.outcomes.items()},
        "recomputed": _flat(ours.recomputed),
        "pieces": pieces,
        "gaps": [
            [start, length, one.prompt.excerpt(start, start + length, 90)]
            for start, length in zip(gaps[::2], gaps[1::2], strict=True)
        ],
        "kinds": [
            number
            for i, start in enumerate(bounds[:-1])
            for number in (bounds[i + 1] - start, int(one.kinds[start]))
        ],
    }


def _flat(mask: Mask) -> list[int]:
    """Runs of true values as start, length, start, length, ..."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    flat = np.stack([edges[::2], edges[1::2] - edges[::2]], axis=1).ravel()
    return [int(number) for number in flat]


def _embedded(data: Any) -> str:
    """JSON that cannot end the script it stands in."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    return text.replace("<", "\\u003c").encode("utf-8", "replace").decode()
