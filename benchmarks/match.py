"""How fast the matcher is: a long prompt against many stored blocks, inserts and evictions, memory.

    python benchmarks/match.py                      # 1,000,000 blocks, 100,000 tokens: about two minutes
    python benchmarks/match.py --blocks 20000       # seconds

Stored are made-up files of random tokens whose blocks have the lengths of code blocks (log-normal, median 80,
mean about 120 tokens); every fourth file starts with one of a few licence headers, and every eighth block is
stored alone as well. Every repetition has its own prompt, so that nothing is in a cache that a real one would
not find there. Prompts:

    mixed  half whole files, a quarter single blocks, an eighth files with one edited block, the rest fresh
    fresh  nothing matches: every position is looked up
    files  everything matches
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from machine import machine

from agentcache.entry import EntryInfo, Tokens, as_tokens
from agentcache.match import Matcher, warm_up
from agentcache.match.synthetic import alone, stream

VOCABULARY = 150_000
BLOCKS_PER_FILE = 10


def file_of(rng: np.random.Generator, licences: list[Tokens]) -> list[EntryInfo]:
    """Entries of one made-up file."""
    lengths = np.clip(rng.lognormal(np.log(80), 0.9, BLOCKS_PER_FILE), 4, 4000)
    parts = [as_tokens(rng.integers(0, VOCABULARY, int(length))) for length in lengths]
    if rng.random() < 0.25:
        parts[0] = np.concatenate([licences[rng.integers(len(licences))], parts[0]])
    return stream(parts)


def blocks(rng: np.random.Generator, count: int) -> Iterator[EntryInfo]:
    """`count` entries."""
    licences = [as_tokens(rng.integers(0, VOCABULARY, length)) for length in (24, 120, 200, 300)]
    made = 0
    while made < count:
        for entry in file_of(rng, licences):
            for one in [entry, alone(entry.tokens)] if entry.parent and rng.random() < 0.125 else [entry]:
                if made < count:
                    made += 1
                    yield one


def prompt_of(rng: np.random.Generator, kind: str, length: int, files: list[list[Tokens]]) -> Tokens:
    """A prompt of exactly `length` tokens."""
    parts: list[Tokens] = []
    while sum(map(len, parts)) < length:
        file = files[rng.integers(len(files))]
        draw = rng.random() if kind == "mixed" else {"fresh": 1.0, "files": 0.0}[kind]
        fresh = as_tokens(rng.integers(0, VOCABULARY, int(rng.integers(20, 500))))
        if draw < 0.5:
            parts += file
        elif draw < 0.75:
            parts.append(file[rng.integers(len(file))])
        elif draw < 0.875:
            parts += [*file[:4], fresh[:40], *file[5:]]
        else:
            parts.append(fresh)
    return np.concatenate(parts)[:length]


def summary(seconds: list[float]) -> dict[str, float]:
    """Median and spread in milliseconds."""
    ms = sorted(1000 * s for s in seconds)
    return {
        "median_ms": round(statistics.median(ms), 3),
        "min_ms": round(ms[0], 3),
        "p90_ms": round(ms[int(0.9 * (len(ms) - 1))], 3),
        "max_ms": round(ms[-1], 3),
    }


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds, and what `work` returned."""
    begin = time.perf_counter()
    result = work()
    return time.perf_counter() - begin, result


def measure(num_blocks: int, num_tokens: int, repeats: int, seed: int) -> dict[str, Any]:
    """All figures."""
    rng = np.random.default_rng(seed)
    warm_up_s, _ = timed(warm_up)
    matcher = Matcher()
    add_s, slowest_s = 0.0, 0.0
    files: list[list[Tokens]] = [[]]
    sample: list[EntryInfo] = []
    gc.disable()  # the sample's objects, not the matcher's
    for number, entry in enumerate(blocks(rng, num_blocks)):
        cpu_s = time.thread_time()
        seconds, _ = timed(lambda entry=entry: matcher.add(entry))  # type: ignore[misc]
        add_s, slowest_s = add_s + seconds, max(slowest_s, time.thread_time() - cpu_s)
        if number % 100 < BLOCKS_PER_FILE:  # whole runs of blocks, of every part of the store
            files[-1].append(entry.tokens)
            sample.append(entry)
        elif files[-1]:
            files.append([])
    gc.freeze()
    gc.enable()
    files = [file for file in files if len(file) > 5]

    prompts = {}
    for kind in ("mixed", "fresh", "files"):
        seconds_each, shares, spans = [], [], []
        for _ in range(repeats):
            prompt = prompt_of(rng, kind, num_tokens, files)
            seconds, found = timed(lambda prompt=prompt: matcher.match(prompt))  # type: ignore[misc]
            seconds_each.append(seconds)
            shares.append(sum(span.length for span in found) / num_tokens)
            spans.append(len(found))
        prompts[kind] = {
            **summary(seconds_each),
            "matched_share": round(statistics.mean(shares), 4),
            "spans": round(statistics.mean(spans)),
        }

    bytes_before = matcher.nbytes
    churn = sample[: max(1, min(len(sample), 100_000))]
    evict_s, _ = timed(lambda: deque(map(matcher.remove, [entry.id for entry in churn]), maxlen=0))
    insert_s, _ = timed(lambda: deque(map(matcher.add, churn), maxlen=0))
    assert matcher.nbytes == bytes_before, "a steady state does not grow"
    table = matcher.nbytes - matcher.nbytes_tokens
    return {
        "machine": machine(),
        "blocks": len(matcher),
        "fingerprints": matcher.num_fingerprints,
        "prompt_tokens": num_tokens,
        "repeats": repeats,
        "match": prompts,
        "warm_up_s": round(warm_up_s, 2),
        "build": {"blocks_per_s": round(num_blocks / add_s), "slowest_cpu_ms": round(1000 * slowest_s, 1)},
        "steady": {
            "evict_per_s": round(len(churn) / evict_s),
            "insert_per_s": round(len(churn) / insert_s),
            "blocks": len(churn),
        },
        "bytes_per_fingerprint": {
            "all_but_tokens": round(table / matcher.num_fingerprints, 1),
            "tokens": round(matcher.nbytes_tokens / matcher.num_fingerprints, 1),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--blocks", type=int, default=1_000_000)
    parser.add_argument("--tokens", type=int, default=100_000, help="length of the prompts")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print nothing but the last line")
    args = parser.parse_args()
    result = measure(args.blocks, args.tokens, args.repeats, args.seed)
    if not args.json:
        for name, value in result.items():
            print(f"{name:>22}: {value}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
