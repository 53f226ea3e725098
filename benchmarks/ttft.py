"""Time to first token: full prefill, blended, CacheBlend's selection, and what vLLM needs for as many new tokens.

    python benchmarks/ttft.py --model MODEL [--lengths 4000 16000] [--pairs N] [--json]

One server, one request at a time, interleaved. Each prompt is whole files of installed packages in its own order.
`ratio`: exact over fast of the same prompt, median of the pairs. `cacheblend15_ratio`: the same with every block's
K/V computed by itself and 15 % of the matched tokens recomputed by the deviation of layer 1 (on other files of the same
kind, with their own exact times, so that the two methods do not find each other's entries). `roofline_ratio`: fast over
what vLLM takes to prefill as many new tokens behind a prefix-cache hit of the same length, plus a memcpy of the reused
bytes.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from bounded import add_at_most, bounded
from code_prompts import Corpus, File
from tokenizers import Tokenizer

from agentcache.context import Stream, Streams
from agentcache.engine import Engine, EngineOptions
from agentcache.engine_client import EngineClient
from agentcache.models import resolve
from agentcache.settings import GIB, EngineSettings

SERVED = "measured"
CACHEBLEND = {"strategy": "deviation", "budget": 0.15}
QUESTION = "\nTask: say in one sentence what the first file above is for.\n"


@contextmanager
def engine(folder: str, max_tokens: int, kv_gib: int, eager: bool) -> Iterator[EngineClient]:
    """A server with the plug-in and a store of its own."""
    with tempfile.TemporaryDirectory() as scratch:
        settings = EngineSettings(store_dir=str(Path(scratch) / "store"), ram_bytes=4 * GIB)
        extra = ("--max-model-len", str(max_tokens), "--no-enable-log-requests")
        extra += ("--enforce-eager",) if eager else ()
        options = EngineOptions(folder, SERVED, kv_gib=kv_gib, settings=settings, extra=extra)
        with Engine(options) as running:
            running.wait_ready()
            with running.client() as client:
                yield client


class Prompts:
    """Files in two disjoint sets, one stored as the warm worker does, one block by block."""

    def __init__(self, folder: str, length: int, seed: int) -> None:
        self._tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
        self.streams = Streams(folder, length)
        files = Corpus(self._tokenizer, self.streams, 3000).files
        rng = random.Random(seed)
        rng.shuffle(files)
        self.ours: list[File] = []
        self.apart: list[File] = []
        for file in files:
            fewer = min((self.ours, self.apart), key=lambda chosen: sum(one.tokens for one in chosen))
            if sum(one.tokens for one in fewer) < 1.15 * length:
                fewer.append(file)
        self._length = length
        self._rng = rng

    def of_files(self) -> list[Stream]:
        return [s for file in self.ours for s in self.streams.of_file(file.data, file.blocks)]

    def of_blocks(self) -> list[Stream]:
        found = [self.streams.alone(file.data, block) for file in self.apart for block in file.blocks]
        return [stream for stream in found if stream is not None]

    def make(self, files: Sequence[File]) -> list[int]:
        """Whole files in random order, as near to the length as they come, and a question."""
        tail = self._encode(QUESTION)
        ids: list[int] = self._encode("Look at these files.\n\n")
        for file in self._rng.sample(list(files), len(files)):
            piece = self._encode(f"{file.path}\n```python\n{file.text()}```\n\n")
            if len(ids) + len(piece) + len(tail) <= self._length:
                ids += piece
        return ids + tail

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def store(client: EngineClient, streams: Sequence[Stream]) -> None:
    """Have entries computed and kept."""
    for stream in streams:
        client.precompute(SERVED, stream.tokens.tolist(), list(stream.cuts))


def ask(client: EngineClient, prompt: Sequence[int], salt: str, **wish: Any) -> tuple[float, dict[str, Any]]:
    """Seconds to the first token, and the request's counters."""
    body = {
        "model": SERVED,
        "prompt": list(prompt),
        "max_tokens": 1,
        "temperature": 0.0,
        "stream": True,
        "cache_salt": salt,
        "kv_transfer_params": {"agentcache": wish},
    }
    before = client.status()["totals"]["requests"]
    began = time.perf_counter()
    seconds = 0.0
    with client.stream("/v1/completions", body) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if line.startswith("data: {") and not seconds:
                seconds = time.perf_counter() - began
    return seconds, client.record_after(before)


def memcpy_s(num_bytes: int) -> float:
    """Seconds to copy so many bytes in memory, the better of three."""
    source = np.ones(num_bytes, np.uint8)
    target = np.empty_like(source)
    times = []
    for _ in range(3):
        began = time.perf_counter()
        np.copyto(target, source)
        times.append(time.perf_counter() - began)
    return min(times)


def pair(
    client: EngineClient, prompts: Prompts, page: int, token_bytes: int, number: int
) -> dict[str, float]:
    """One prompt of each set, exact and not; which comes first alternates."""
    unique = f"{time.time_ns()}"
    ours, apart = prompts.make(prompts.ours), prompts.make(prompts.apart)
    order = ["exact", "fast"] if number % 2 else ["fast", "exact"]
    found: dict[str, float] = {}
    counters: dict[str, Any] = {}
    for mode in order:
        found[mode], now = ask(client, ours, f"o {mode} {unique}", mode=mode)
        if mode == "fast":
            counters = now
    for mode in order:
        wish = CACHEBLEND if mode == "fast" else {}
        found[f"apart {mode}"], now = ask(client, apart, f"a {mode} {unique}", mode=mode, **wish)
        if mode == "fast":
            found["apart share"] = now["recomputed_tokens"] / now["prompt_tokens"]
    new = counters["recomputed_tokens"] + counters["computed_tokens"]
    context = (len(ours) - new) // page * page
    ask(client, ours[:context], f"r {unique}", mode="exact")
    behind = list(reversed(ours))[:new]
    found["hit"], hit = ask(client, ours[:context] + behind, f"r {unique}", mode="exact")
    assert hit["prefix_hit_tokens"] == context, "the roofline is a prefix hit"
    found["memcpy"] = memcpy_s(counters["reused_tokens"] * token_bytes)
    found["share"] = counters["recomputed_tokens"] / counters["prompt_tokens"]
    found["reused"] = counters["reused_tokens"] / counters["prompt_tokens"]
    found["tokens"] = counters["prompt_tokens"]
    return found


def summary(pairs: Sequence[dict[str, float]]) -> dict[str, Any]:
    def middle(values: Sequence[float]) -> float:
        return statistics.median(values)

    ratios = [one["exact"] / one["fast"] for one in pairs]
    baseline = [one["apart exact"] / one["apart fast"] for one in pairs]
    return {
        "pairs": len(pairs),
        "prompt_tokens": middle([one["tokens"] for one in pairs]),
        "exact_s": middle([one["exact"] for one in pairs]),
        "fast_s": middle([one["fast"] for one in pairs]),
        "ratio": middle(ratios),
        "ratio_spread": [min(ratios), max(ratios)],
        "reused_share": middle([one["reused"] for one in pairs]),
        "recomputed_share": middle([one["share"] for one in pairs]),
        "cacheblend15_ratio": middle(baseline),
        "cacheblend15_recomputed_share": middle([one["apart share"] for one in pairs]),
        "roofline_ratio": middle([one["fast"] / (one["hit"] + one["memcpy"]) for one in pairs]),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--lengths", type=int, nargs="+", default=[4000])
    parser.add_argument("--pairs", type=int, default=7)
    add_at_most(parser, "fourth pair")
    parser.add_argument("--kv-gib", type=int, default=4)
    parser.add_argument("--eager", action="store_true", help="start vLLM without compiling, as `serve` does")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    folder = resolve(options.model)
    config = json.loads((Path(folder) / "config.json").read_text())
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    token_bytes = 2 * 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * head_dim
    lengths: dict[str, Any] = {}
    with engine(folder, max(options.lengths) + 512, options.kv_gib, options.eager) as client:
        for length in options.lengths:
            prompts = Prompts(folder, length, seed=length)
            store(client, [*prompts.of_files(), *prompts.of_blocks()])
            pair(client, prompts, 128, token_bytes, 0)  # thrown away: compiles and allocates
            pairs = []
            for number in bounded(range(options.pairs), 3, options.at_most):
                pairs.append(pair(client, prompts, 128, token_bytes, number))
                print(f"{length}: {number + 1}/{options.pairs} {pairs[-1]}", file=sys.stderr, flush=True)
            lengths[str(length)] = summary(pairs)
            print(json.dumps({length: lengths[str(length)]}, indent=1), file=sys.stderr)
    if options.json:
        name = options.model if not Path(options.model).exists() else Path(options.model).name
        print(json.dumps({"model": name, "eager": options.eager, "lengths": lengths}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
