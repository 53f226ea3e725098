"""What replay says of traffic that anybody can make again, and how fast it says it.

    python benchmarks/replay.py                                   # traces made from this repository: a minute
    python benchmarks/replay.py --trace T.jsonl.gz --repo PATH    # a recorded one, with its repository

Made are RepoAgent's run over `indexer/`, and two sessions of every client that `agentcache trace agent` knows. Each is
replayed `--repeats` times with its repository indexed; hit rates are the same every time, speeds are not. In a trace of
several sessions, "missed then reused" counts the last one: of the tokens that prefix caching misses there, those that
agentcache reuses. All shares are of prompt tokens, as `agentcache replay` defines them.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from machine import machine

from agentcache.context.streams import Streams
from agentcache.models import resolve
from agentcache.replay.formats import read_traces
from agentcache.replay.replay import replay
from agentcache.replay.report import report
from agentcache.replay.source import Source
from agentcache.traces.agent import AgentOptions, agent_trace
from agentcache.traces.clients import CLIENTS
from agentcache.traces.repoagent import RepoAgentOptions, repoagent_trace
from agentcache.traces.sources import read_sources

ROOT = Path(__file__).resolve().parent.parent / "indexer"


def write(lines: Iterable[Mapping[str, Any]], path: Path) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def made(folder: Path) -> dict[str, list[Path]]:
    """Trace files by name; sessions of a client in files of their own."""
    sources = read_sources(ROOT)
    traces = {"repoagent": [write(repoagent_trace(sources, RepoAgentOptions()), folder / "repoagent.jsonl")]}
    for client in CLIENTS:
        sessions: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
        begun = 0
        for line in agent_trace(sources, AgentOptions(client)):
            body = line["body"]
            answered = any(
                message.get("role") == "tool"
                or message.get("type") == "function_call_output"
                or "tool_result" in str(message)
                for message in body.get("messages") or body.get("input")
            )
            begun += not answered
            sessions[begun > 1].append(line)
        traces[client] = [
            write(lines, folder / f"{client}-{1 + later}.jsonl") for later, lines in sessions.items()
        ]
    return traces


def measure(paths: list[Path], repos: list[str], model: str, repeats: int) -> dict[str, Any]:
    """Figures of one trace."""
    folder = Path(resolve(model))
    speeds, result = [], {}
    for _ in range(repeats):
        with Source(repos, Streams(str(folder), 8192)) as source:
            run = replay(read_traces(paths), folder, source if repos else None)
        result = report(run, model, repos)
        speeds.append(result["tokens_per_second"])
    last = list(result["by_trace"].values())[-1]
    return {
        "requests": result["requests"],
        "prompt_tokens": result["prompt_tokens"],
        "hit_rates": {name: figures["hit_rate"] for name, figures in result["policies"].items()},
        "recomputed_rate": result["policies"]["agentcache"]["recomputed_rate"],
        "learned_rate": result["background"]["learned_rate"],
        "missed_then_reused_rate": last["prefix_missed_then_reused_rate"],
        "tokens_per_second": {
            "median": round(statistics.median(speeds)),
            "min": min(speeds),
            "max": max(speeds),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--trace", type=Path, action="append", default=[], help="a recorded trace; may be repeated"
    )
    parser.add_argument("--repo", action="append", default=[], help="its repository; may be repeated")
    parser.add_argument("--tokenizer", default="smollm2-135m")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print nothing but the last line")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        traces = {"recorded": args.trace} if args.trace else made(Path(temporary))
        repos = args.repo if args.trace else [str(ROOT)]
        found = {name: measure(paths, repos, args.tokenizer, args.repeats) for name, paths in traces.items()}
    result = {
        "machine": machine() | {"python": platform.python_version()},
        "tokenizer": args.tokenizer,
        "repeats": args.repeats,
        "traces": found,
    }
    if not args.json:
        for name, figures in found.items():
            rates = ", ".join(f"{policy} {rate:.1%}" for policy, rate in figures["hit_rates"].items())
            print(
                f"{name:>15}: {figures['requests']} requests, {figures['prompt_tokens']:,} tokens; {rates}; "
                f"recomputed {figures['recomputed_rate']:.1%}; missed then reused "
                f"{figures['missed_then_reused_rate']:.1%}; {figures['tokens_per_second']['median']:,} tokens/s"
            )
    print(json.dumps(result))


if __name__ == "__main__":
    main()
