"""How long others' decoding waits while a long prompt is blended.

    python benchmarks/latency.py [--model MODEL] [--length 6000] [--repeats N] [--json]

One server; somebody reads a stream of tokens while a prompt of whole files in random order comes in. The figure is the
longest time between two tokens of the stream while that prompt is answered, median of the repeats:

    quiet   nothing comes in
    fast    the prompt is blended
    chunk   vLLM itself prefills as many new tokens behind a prefix-cache hit of the same length: a chunk of that size
    full    vLLM prefills the whole prompt, in its own chunks
    burst   as many such prompts as fit the page pool, all blended, come in at once

`fast_over_chunk` is what blending costs others beside a chunk of the same size; `burst_over_full` is at most about 1 if
steps are bounded as vLLM's chunks are.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ttft import SERVED, Prompts, engine, store

from agentcache.engine_client import EngineClient
from agentcache.models import resolve

KINDS = ("quiet", "fast", "chunk", "full", "burst")
PAGE = 128
_BEFORE, _BEHIND = 12, 8
"""Tokens of the stream before the prompt comes in, and after it was answered."""


class Stream:
    """Somebody's answer being generated: when each token came."""

    def __init__(self, client: EngineClient) -> None:
        self.times: list[float] = []
        self.over = threading.Event()
        self._client = client
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> Stream:
        self._thread.start()
        self.wait_for(_BEFORE)
        return self

    def __exit__(self, *_: object) -> None:
        self.wait_for(len(self.times) + _BEHIND)
        self.over.set()
        self._thread.join()

    def wait_for(self, count: int) -> None:
        while len(self.times) < count and self._thread.is_alive():
            time.sleep(0.005)

    def longest_s(self, since: float) -> float:
        """Between two tokens, of which the second came after `since`."""
        pairs = zip(self.times, self.times[1:], strict=False)
        return max(after - before for before, after in pairs if after > since)

    def _read(self) -> None:
        body = {
            "model": SERVED,
            "prompt": [500 + i for i in range(40)],
            "max_tokens": 2000,
            "temperature": 0.0,
            "ignore_eos": True,
            "stream": True,
            "cache_salt": f"{time.time_ns()}",
            "kv_transfer_params": {"agentcache": {"mode": "exact"}},
        }
        with self._client.stream("/v1/completions", body) as response:
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    self.times.append(time.perf_counter())
                if self.over.is_set():
                    return


def ask(client: EngineClient, prompt: Sequence[int], salt: str, **wish: Any) -> dict[str, Any]:
    """One token; the request's counters."""
    body = {
        "model": SERVED,
        "prompt": list(prompt),
        "max_tokens": 1,
        "temperature": 0.0,
        "cache_salt": salt,
        "kv_transfer_params": {"agentcache": wish},
    }
    counters: dict[str, Any] = client.post("/v1/completions", body)["kv_transfer_params"]["agentcache"]
    return counters


def longest_gap(client: EngineClient, disturb: Callable[[], object]) -> float:
    with Stream(client) as stream:
        began = time.perf_counter()
        disturb()
    return stream.longest_s(began)


def round_of(client: EngineClient, prompts: Prompts, burst: int) -> dict[str, float]:
    """The longest gap of each kind, once, with prompts of their own."""
    unique = f"{time.time_ns()}"
    prompt, other = prompts.make(prompts.ours), prompts.make(prompts.ours)
    found = {"quiet": longest_gap(client, lambda: time.sleep(1.0))}
    counters: dict[str, Any] = {}
    found["fast"] = longest_gap(client, lambda: counters.update(ask(client, prompt, f"f{unique}")))
    new = counters["recomputed_tokens"] + counters["computed_tokens"]
    context = (len(prompt) - new) // PAGE * PAGE
    found["full"] = longest_gap(client, lambda: ask(client, other, f"r{unique}", mode="exact"))
    behind = list(reversed(other))[:new]
    found["chunk"] = longest_gap(
        client, lambda: ask(client, other[:context] + behind, f"r{unique}", mode="exact")
    )
    several = [prompts.make(prompts.ours) for _ in range(burst)]
    with ThreadPoolExecutor(burst) as pool:
        found["burst"] = longest_gap(
            client,
            lambda: list(pool.map(lambda i: ask(client, several[i], f"b{i} {unique}"), range(burst))),
        )
    found["new_tokens"] = new
    found["prompt_tokens"] = len(prompt)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--length", type=int, default=6000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--burst", type=int, default=8)
    parser.add_argument("--kv-gib", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    folder = resolve(options.model)
    with engine(folder, options.length + 2112, options.kv_gib) as client:
        prompts = Prompts(folder, options.length, seed=1)
        store(client, prompts.of_files())
        round_of(client, prompts, options.burst)  # thrown away: compiles and allocates
        rounds = []
        for number in range(options.repeats):
            rounds.append(round_of(client, prompts, options.burst))
            print(f"{number + 1}/{options.repeats} {rounds[-1]}", file=sys.stderr, flush=True)
    result: dict[str, Any] = {
        "model": options.model if not Path(options.model).exists() else Path(options.model).name,
        "prompt_tokens": statistics.median(one["prompt_tokens"] for one in rounds),
        "new_tokens": statistics.median(one["new_tokens"] for one in rounds),
        "longest_gap_s": {
            kind: {
                "median": statistics.median(one[kind] for one in rounds),
                "spread": [min(one[kind] for one in rounds), max(one[kind] for one in rounds)],
            }
            for kind in KINDS
        },
        "fast_over_chunk": statistics.median(one["fast"] / one["chunk"] for one in rounds),
        "burst_over_full": statistics.median(one["burst"] / one["full"] for one in rounds),
    }
    print(json.dumps(result, indent=1), file=sys.stderr)
    if options.json:
        print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
