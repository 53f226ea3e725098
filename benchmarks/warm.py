"""The warm worker: how fast it is, how soon an edit is warm, what agents feel of it, and what a killed engine costs.

    python benchmarks/warm.py [--model smollm2-135m] [--only throughput edits agents restart] [--json]

Modules of the standard library, in a folder of its own, with one real server and the worker in this process.

throughput  the worker on files that are not stored, against vLLM's prefill of the same files in prompts of their own
            (`exact`, no prefix cache, all sent at once), group by group in turn. `ratio`: of the tokens a second
edits       one method of a file of 600 lines is saved, with the watcher running. `save_to_warm_s`: from the return of
            the write to the method's entry; tokens as the engine counts them, against those of the file
agents      `fast` prompts of two warm files in new orders, one at a time with random pauses, while the worker has
            nothing to do and while it has; in turn. `ttft_ratio`: of the medians
restart     the engine is killed (SIGKILL) and started again on the same store: seconds until it answers, and until the
            first warm request has its first token
"""

from __future__ import annotations

import argparse
import json
import os
import random
import secrets
import signal
import statistics
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from machine import machine

from agentcache.context import Streams
from agentcache.engine import Engine, EngineOptions
from agentcache.engine_client import WORKER_HEADER, EngineClient
from agentcache.indexer import Index
from agentcache.models import resolve
from agentcache.settings import GIB, EngineSettings
from agentcache.warm import WarmItem
from agentcache.warm.engine import RemoteEngine
from agentcache.warm.warmer import Warmer

SERVED = "measured"
MAX_TOKENS = 8192
LINES = 600
QUESTION = "\nTask: say in one sentence what the first file above is for.\n"
PARTS = ("throughput", "edits", "agents", "restart")


class Bench:
    """A server on a store of its own, a folder of files, their index, and how to make a worker for them."""

    def __init__(self, folder: Path, model: str, files: Sequence[Path], eager: bool) -> None:
        self.root = folder / "repository"
        self.root.mkdir()
        for file in files:
            (self.root / file.name).write_bytes(file.read_bytes())
        self.model = model
        self.streams = Streams(model, MAX_TOKENS - 64)
        self.index = Index.open(self.root, folder / "index.db")
        self.index.update()
        self.options = EngineOptions(
            model,
            SERVED,
            kv_gib=1,
            settings=EngineSettings(store_dir=str(folder / "store"), ram_bytes=2 * GIB),
            extra=("--max-model-len", str(MAX_TOKENS), *(("--enforce-eager",) if eager else ())),
            worker_key=secrets.token_hex(16),
        )
        self.engine = Engine(self.options)
        self.engine.wait_ready()
        self.client: EngineClient = self.engine.client()

    def close(self) -> None:
        self.engine.stop()
        self.client.close()
        self.index.close()

    def worker(self) -> Warmer:
        return Warmer(RemoteEngine(self.client, SERVED), [self.index], self.streams)

    def tokens(self, path: str) -> list[int]:
        return self.streams.encode((self.root / path).read_text())

    def ask(
        self, prompt: Sequence[int], mode: str, headers: Mapping[str, str] | None = None
    ) -> tuple[float, dict[str, Any]]:
        """Seconds to the first token, and the request's counters; no page of an earlier request is hit."""
        body = {
            "model": SERVED,
            "prompt": list(prompt),
            "max_tokens": 1,
            "temperature": 0.0,
            "cache_salt": secrets.token_hex(8),
            "kv_transfer_params": {"agentcache": {"mode": mode}},
        }
        began = time.perf_counter()
        answer = self.client.post("/v1/completions", body, headers)
        return time.perf_counter() - began, answer["kv_transfer_params"]["agentcache"]

    def two_files(self, rng: random.Random, paths: Sequence[str]) -> list[int]:
        """A prompt of two files."""
        picked = rng.sample(list(paths), 2)
        shown = "".join(f"{path}\n```python\n{(self.root / path).read_text()}```\n\n" for path in picked)
        return self.streams.encode(shown + QUESTION)


def spread(values: Sequence[float], digits: int = 3) -> list[float]:
    """Least, median and largest."""
    return [round(value, digits) for value in (min(values), statistics.median(values), max(values))]


# throughput


def throughput(bench: Bench, paths: Sequence[str], groups: int) -> dict[str, Any]:
    """Both ways on every group of files, which of them first alternates."""
    worker = bench.worker()
    worker.warm(bench.index, [WarmItem(paths[0])])  # the first steps find the pace
    pairs: list[tuple[int, float, float]] = []
    rest = paths[1:]
    for number in range(groups):
        group = rest[number::groups]
        prompts = [bench.tokens(path) for path in group]
        count = sum(map(len, prompts))
        if number % 2:
            warmed = _warm_s(worker, bench, group, count)
            prefilled = _prefill_s(bench, prompts)
        else:
            prefilled = _prefill_s(bench, prompts)
            warmed = _warm_s(worker, bench, group, count)
        pairs.append((count, warmed, prefilled))
    tokens, warmed_s, prefilled_s = (sum(column) for column in zip(*pairs, strict=True))
    return {
        "tokens": tokens,
        "groups": groups,
        "warm_tokens_per_s": round(tokens / warmed_s, 1),
        "vllm_tokens_per_s": round(tokens / prefilled_s, 1),
        "ratio": round(prefilled_s / warmed_s, 3),
        "ratio_by_group": [round(prefilled / warmed, 3) for _, warmed, prefilled in pairs],
    }


def _warm_s(worker: Warmer, bench: Bench, group: Sequence[str], count: int) -> float:
    before = worker.progress.tokens_computed
    began = time.perf_counter()
    worker.warm(bench.index, [WarmItem(path) for path in group])
    seconds = time.perf_counter() - began
    computed = worker.progress.tokens_computed - before
    assert abs(computed - count) < 0.02 * count, f"{computed} tokens computed of {count}"
    return seconds


def _prefill_s(bench: Bench, prompts: Sequence[Sequence[int]]) -> float:
    nobody = {WORKER_HEADER: "1"}  # else the worker would be slow for a minute, for the sake of an agent
    with ThreadPoolExecutor(len(prompts)) as pool:
        began = time.perf_counter()
        list(pool.map(lambda prompt: bench.ask(prompt, "exact", nobody), prompts))
        return time.perf_counter() - began


# edits


def edits(bench: Bench, path: str, count: int) -> dict[str, Any]:
    """Saves of one method each, in different places of one file, each when everything is warm again."""
    worker = bench.worker()
    with running(worker):
        _wait(lambda: worker.progress.state == "idle" and not worker.progress.queue.get("touched"), worker)
        methods = [block for block in bench.index.blocks(path) if block.kind in ("method", "function")]
        seconds, tokens, sizes, file_tokens = [], [], [], 0
        for number in range(count):
            method = methods[(number * len(methods)) // count]
            before = worker.progress.last_edit
            lines = (bench.root / path).read_text().split("\n")
            at = _line_in(lines, method.start_line, method.end_line)
            lines[at] += f"  # edit {number}"
            (bench.root / path).write_text("\n".join(lines))
            saved = time.time()
            _wait(lambda before=before: worker.progress.last_edit != before, worker)  # type: ignore[misc]
            edit = worker.progress.last_edit
            assert edit is not None
            seconds.append(edit.at - saved)
            tokens.append(edit.tokens)
            file_tokens = edit.file_tokens
            (block,) = [one for one in bench.index.blocks(path) if one.start_line == method.start_line]
            sizes.append(len(bench.streams.encode("\n".join(lines[block.start_line - 1 : block.end_line]))))
            _wait(lambda: worker.progress.state == "idle", worker)
    return {
        "edits": count,
        "file_lines": len(lines),
        "file_tokens": file_tokens,
        "save_to_warm_s": spread(seconds),
        "save_to_warm_s_median": round(statistics.median(seconds), 3),
        "computed_tokens": spread(tokens, 0),
        "block_tokens": spread(sizes, 0),
        "computed_share_of_file": round(sum(tokens) / (count * file_tokens), 4),
    }


def _line_in(lines: Sequence[str], first: int, last: int) -> int:
    """Index of the last line of a block that a comment can be put behind."""
    for number in range(last - 1, first - 1, -1):
        if lines[number].strip() and not lines[number].rstrip().endswith(("\\", '"""', "'''")):
            return number
    return first - 1


@contextmanager
def running(worker: Warmer) -> Iterator[None]:
    """The worker in a thread of its own."""
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join()


def _wait(check: Callable[[], bool], worker: Warmer, limit_s: float = 240.0) -> None:
    deadline = time.monotonic() + limit_s
    time.sleep(0.3 if worker.progress.state == "off" else 0.0)
    while not check():
        if time.monotonic() > deadline:
            raise SystemExit(f"the worker did not get there: {worker.progress}")
        time.sleep(0.005)


# agents


def agents(
    bench: Bench, warm: Sequence[str], cold: Sequence[str], rounds: int, requests: int
) -> dict[str, Any]:
    """Rounds of requests, with the worker idle and busy in turn."""
    bench.worker().warm(bench.index, [WarmItem(path) for path in warm])
    rng = random.Random(1)
    for _ in range(3):
        bench.ask(bench.two_files(rng, warm), "fast")
    ttft: dict[str, list[float]] = {"idle": [], "busy": []}
    computed, reused, busy_s = 0, [], 0.0
    left = list(cold)
    for number in range(rounds):
        for state in ("idle", "busy") if number % 2 else ("busy", "idle"):
            group, left = (
                (left[: len(cold) // rounds], left[len(cold) // rounds :]) if state == "busy" else ([], left)
            )
            worker = bench.worker()
            thread = threading.Thread(
                target=worker.warm, args=[bench.index, [WarmItem(path) for path in group]]
            )
            thread.start()
            began = time.perf_counter()
            for _ in range(requests):
                time.sleep(min(4.0, rng.expovariate(1 / 0.8)))
                seconds, counters = bench.ask(bench.two_files(rng, warm), "fast")
                ttft[state].append(seconds)
                reused.append(counters["reused_tokens"] / counters["prompt_tokens"])
            busy_s += time.perf_counter() - began if state == "busy" else 0.0
            had_work = worker.progress.queued_blocks > 0 or bool(worker.service._begun)
            worker.stop()
            thread.join()
            computed += worker.progress.tokens_computed
            if state == "busy" and not had_work:
                raise SystemExit("the worker ran out of work: more files are needed")
    idle, busy = statistics.median(ttft["idle"]), statistics.median(ttft["busy"])
    return {
        "requests": len(ttft["idle"]),
        "ttft_idle_s": round(idle, 4),
        "ttft_busy_s": round(busy, 4),
        "ttft_idle_spread_s": spread(ttft["idle"]),
        "ttft_busy_spread_s": spread(ttft["busy"]),
        "ttft_ratio": round(busy / idle, 3),
        "ttft_mean_ratio": round(statistics.fmean(ttft["busy"]) / statistics.fmean(ttft["idle"]), 3),
        "reused_share": round(statistics.fmean(reused), 4),
        "worker_tokens_meanwhile": computed,
        "worker_tokens_per_s_meanwhile": round(computed / busy_s, 1),
    }


# restart


def restart(bench: Bench, warm: Sequence[str]) -> dict[str, Any]:
    """Kill the engine, start it again, ask for what was warm."""
    worker = bench.worker()
    worker.warm(bench.index, [WarmItem(path) for path in warm])
    deadline = time.monotonic() + 60
    while bench.client.status()["store"]["pending"] and time.monotonic() < deadline:
        time.sleep(0.05)
    prompt = bench.two_files(random.Random(2), warm)
    exact_s, _ = bench.ask(prompt, "exact")
    os.killpg(bench.engine.pid, signal.SIGKILL)
    killed = time.perf_counter()
    bench.client.close()
    bench.engine.stop()
    bench.engine = Engine(bench.options)
    bench.engine.wait_ready()
    bench.client = bench.engine.client()
    ready_s = time.perf_counter() - killed
    ttft_s, counters = bench.ask(prompt, "fast")
    total_s = time.perf_counter() - killed
    again = bench.worker()
    again.warm(bench.index, [WarmItem(path) for path in warm])
    return {
        "until_ready_s": round(ready_s, 2),
        "until_first_warm_request_s": round(total_s, 2),
        "its_ttft_s": round(ttft_s, 3),
        "exact_ttft_s": round(exact_s, 3),
        "reused_share": round(counters["reused_tokens"] / counters["prompt_tokens"], 4),
        "tokens_computed_again": again.progress.tokens_computed,
    }


def choose(streams: Streams, sizes: range, count: int, taken: Sequence[Path] = ()) -> list[Path]:
    """Modules of the standard library with so many tokens, in an order that is always the same."""
    library = Path(sysconfig.get_path("stdlib"))
    found = []
    names = sorted(library.glob("*.py"))
    random.Random(0).shuffle(names)
    for path in names:
        if path not in taken and path.stat().st_size < 6 * sizes.stop:
            size = streams.count(path.read_text())
            if size in sizes:
                found.append(path)
        if len(found) == count:
            return found
    raise SystemExit(f"the standard library has only {len(found)} modules of {sizes} tokens")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m", help="registered name, folder or hub id")
    parser.add_argument("--only", nargs="*", default=PARTS, choices=PARTS)
    parser.add_argument("--eager", action="store_true", help="start vLLM without compiling: sooner")
    parser.add_argument("--json", action="store_true", help="print nothing but the last line")
    args = parser.parse_args()
    model = os.path.realpath(resolve(args.model))
    streams = Streams(model, 1 << 20)
    small = choose(streams, range(700, 1800), 16)
    cold = choose(streams, range(2500, 6000), 10, small)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bench = Bench(folder, model, [*small, *cold], args.eager)
        began = time.perf_counter()
        warm = [path.name for path in small[:5]]
        measured = [path.name for path in small[5:]]
        parts: dict[str, Callable[[], dict[str, Any]]] = {
            "throughput": lambda: throughput(bench, measured, 2),
            "edits": lambda: edits_alone(folder, bench, 5),
            "agents": lambda: agents(bench, warm, [path.name for path in cold], 2, 15),
            "restart": lambda: restart(bench, warm),
        }
        result: dict[str, Any] = {"machine": machine(), "model": args.model, "eager": args.eager}
        try:
            for part, measure in parts.items():
                if part in args.only:
                    result[part] = measure()
                    if not args.json:
                        print(f"{part}: {json.dumps(result[part], indent=1)}", flush=True)
        finally:
            bench.close()
        result["measured_s"] = round(time.perf_counter() - began, 1)
        result["load_1min"] = round(os.getloadavg()[0], 2)
    print(json.dumps(result))


def edits_alone(folder: Path, bench: Bench, count: int) -> dict[str, Any]:
    """`edits` in a folder with one file, so that nothing else is to be warmed."""
    source = Path(sysconfig.get_path("stdlib")) / "argparse.py"
    root = folder / "edited"
    root.mkdir()
    (root / "long.py").write_text("\n".join(source.read_text().split("\n")[:LINES]))
    whole = bench.root, bench.index
    bench.root, bench.index = root, Index.open(root, folder / "edited.db")
    bench.index.update()
    try:
        return edits(bench, "long.py", count)
    finally:
        bench.index.close()
        bench.root, bench.index = whole


if __name__ == "__main__":
    main()
