"""What a replay reports: one JSON object, from which the terminal's table and the page are made."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from agentcache.replay.breaks import broken, grouped
from agentcache.replay.kinds import LABELS, MEANINGS, Kind
from agentcache.replay.outcome import DEFINITIONS
from agentcache.replay.replay import Run


def report(run: Run, model: str, repositories: list[str]) -> dict[str, Any]:
    """All figures of a run. Shares are of all prompt tokens unless their name says otherwise."""
    prompt_tokens = int(run.tallies["prefix"].prompt.sum())
    requests = run.tallies["prefix"].requests
    blended = run.blended
    assert blended is not None
    found = broken(run.prefix.breaks, run.served)
    result: dict[str, Any] = {
        "traces": list(run.by_trace),
        "model": model,
        "repositories": repositories,
        "requests": requests,
        "prompt_tokens": prompt_tokens,
        "policies": {name: tally.as_json() for name, tally in run.tallies.items()},
        "by_trace": {
            trace: {
                "policies": {name: tally.as_json() for name, tally in tallies.items()},
                "prefix_missed_tokens": run.missed[trace].tokens,
                "prefix_missed_then_reused_tokens": run.missed[trace].reused,
                "prefix_missed_then_reused_rate": _share(run.missed[trace].reused, run.missed[trace].tokens),
            }
            for trace, tallies in run.by_trace.items()
        },
        "kinds": {
            LABELS[kind]: _share(int(run.tallies["prefix"].prompt[kind]), prompt_tokens) for kind in Kind
        },
        "background": {
            "index_tokens": blended.index_tokens,
            "learned_tokens": blended.learned_tokens,
            "learned_rate": _share(blended.learned_tokens, prompt_tokens),
            "views": blended.views,
        },
        "breaks": grouped(found),
        "top_blocks": [
            {"block": label, "saved_tokens": saved} for label, saved in blended.saved_by_label.most_common(20)
        ],
        "replay_seconds": round(run.seconds, 3),
        "tokens_per_second": round(prompt_tokens / run.seconds) if run.seconds else 0,
        "index_seconds": round(run.index_seconds, 3),
        "definitions": DEFINITIONS | {LABELS[kind]: meaning for kind, meaning in MEANINGS.items()},
    }
    if run.tiers is not None:
        result["tiers"] = asdict(run.tiers.use)
    return result


def _share(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0
