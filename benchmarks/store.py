"""The store: codecs, reads to pages, the catalog, opening a million entries, eviction.

python benchmarks/store.py                                   # about ten minutes, 10 GB of disk for a while
python benchmarks/store.py --only reads catalog --entries 20000

codecs    bytes a token, encode and decode GB/s (of bfloat16 K/V, one thread), and the KL that stored K/V adds:
          files of the standard library, cut into entries of code blocks' lengths, every entry of 768 tokens read
          through the codec; mean KL of the next 96 tokens' distributions against K/V as computed, in float32.
          `kl_boundary`: the same with the file's first 16 tokens recomputed, as the planner does
reads     an entry to (made-up) pages: from shared memory against memcpy, from disk against raw sequential reads
          of the same files, page cache dropped before both; alternating, each entry's fastest run
catalog   operations a second: in transactions of 1,000, single look-ups
open      time until a store of so many entries answers, and what it is busy with afterwards
eviction  share of the prefill cost that is served on replayed traces, by capacity: least recently used, expected
          value, and the offline optimum (furthest next use times bytes over cost goes first)
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import shutil
import statistics
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from blake3 import blake3
from machine import machine

from agentcache.entry import EntryInfo, as_tokens, context_digest, entry_id
from agentcache.store import (
    Candidate,
    EntryLayout,
    EntryStore,
    EvictionPolicy,
    ExpectedValue,
    LeastRecentlyUsed,
)
from agentcache.store.catalog import Catalog
from agentcache.store.codecs import CODECS, num_bytes
from agentcache.store.policy import ATTENTION_TOKENS, SAMPLE
from agentcache.store.rows import Row

MODEL = "ab" * 32
SMOL = EntryLayout(parts=2, layers=30, heads=3, head_dim=64, dtype=torch.bfloat16)
PAST, NEXT, BOUNDARY = 768, 96, 16
MODULES = ("argparse", "textwrap", "json.decoder", "string", "queue", "shlex", "dataclasses", "tokenize")
TRACES = Path(__file__).parents[1].parent / "shared" / "traces"


def seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def fastest(work: Callable[[], Any], repeats: int) -> float:
    """Seconds of the fastest of some runs after a first one: others use the machine too."""
    work()
    return min(seconds(work) for _ in range(repeats))


def entry(seed: int, num_tokens: int, layout: EntryLayout = SMOL) -> tuple[EntryInfo, torch.Tensor]:
    tokens = as_tokens(np.random.default_rng(seed).integers(0, 50_000, num_tokens))
    context = context_digest(as_tokens([seed]))
    kv = torch.randn(layout.shape(num_tokens), generator=torch.Generator().manual_seed(seed))
    id = entry_id(MODEL, "", context, tokens)
    return EntryInfo(id, "", context, "", seed, tokens), kv.to(layout.dtype)


# codecs


def codecs(model: str, repeats: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    _, kv = entry(1, 1000)
    result: dict[str, Any] = {}
    memcpy = fastest(lambda: kv.clone(), repeats)
    for name, codec in CODECS.items():
        tensors = codec.encode(kv)
        size = num_bytes(codec, SMOL, kv.shape[2])
        result[name] = {
            "bytes_a_token": round(size / kv.shape[2]),
            "smaller": round(kv.nbytes / size, 2),
            "encode_gb_s": round(kv.nbytes / fastest(lambda: codec.encode(kv), 3) / 1e9, 3),  # noqa: B023
            "decode_gb_s": round(
                kv.nbytes / fastest(lambda: codec.decode(SMOL, tensors), repeats) / 1e9,  # noqa: B023
                2,
            ),
        }
    result["raw"] |= {"encode_gb_s": None, "decode_gb_s": None}  # nothing is done
    result["memcpy_gb_s"] = round(kv.nbytes / memcpy / 1e9, 2)
    torch.set_num_threads(os.cpu_count() or 1)
    if model:
        for name, figures in added_kl(model).items():
            result[name] |= figures
    return result


class Sample(NamedTuple):
    """ids: int64 [1, PAST + NEXT]; kv: [2, L, PAST, H, D] bfloat16; cuts: where entries begin and end."""

    ids: torch.Tensor
    kv: torch.Tensor
    cuts: list[int]


def added_kl(path: str) -> dict[str, dict[str, Any]]:
    """KL added by each codec; mean over positions, worst file."""
    import importlib

    from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    rng = np.random.default_rng(0)

    @torch.inference_mode()
    def sample(module: str) -> Sample:
        text = Path(importlib.import_module(module).__file__ or "").read_text()
        ids = tokenizer(text, return_tensors="pt").input_ids[:, : PAST + NEXT]
        layers = model(ids[:, :PAST], use_cache=True).past_key_values.layers
        kv = torch.stack([torch.stack([layer.keys[0], layer.values[0]]) for layer in layers], dim=1)
        cuts = [0]
        while cuts[-1] < PAST:
            cuts.append(min(PAST, cuts[-1] + int(np.clip(rng.lognormal(np.log(80), 0.9), 8, 600))))
        return Sample(ids, kv.transpose(2, 3).contiguous().bfloat16(), cuts)

    @torch.inference_mode()
    def logprobs(one: Sample, kv: torch.Tensor) -> torch.Tensor:
        cache = DynamicCache()
        for layer in range(kv.shape[1]):
            keys, values = kv[:, layer].float().transpose(1, 2)
            cache.update(keys[None], values[None], layer)
        logits = model(one.ids[:, PAST:], past_key_values=cache, use_cache=True).logits[0]
        return logits.log_softmax(-1)

    result: dict[str, dict[str, Any]] = {name: {"kl": [], "kl_boundary": []} for name in CODECS}
    for module in MODULES:
        one = sample(module)
        if one.ids.shape[1] < PAST + NEXT:
            continue
        layout = EntryLayout(2, one.kv.shape[1], one.kv.shape[3], one.kv.shape[4], torch.bfloat16)
        exact = logprobs(one, one.kv)
        for name, codec in CODECS.items():
            pieces = [
                codec.decode(layout, codec.encode(one.kv[:, :, a:b].contiguous()))
                for a, b in pairwise(one.cuts)
            ]
            read = torch.cat(pieces, dim=2)
            for key in ("kl", "kl_boundary"):
                if key == "kl_boundary":
                    read[:, :, :BOUNDARY] = one.kv[:, :, :BOUNDARY]
                kl = (exact.exp() * (exact - logprobs(one, read))).sum(-1).mean()
                result[name][key].append(float(kl))
    return {
        name: {
            "kl": round(statistics.mean(kls["kl"]), 6),
            "kl_worst_file": round(max(kls["kl"]), 6),
            "kl_boundary": round(statistics.mean(kls["kl_boundary"]), 6),
            "kl_positions": NEXT * len(kls["kl"]),
        }
        for name, kls in result.items()
    }


# reads


def reads(folder: Path, repeats: int) -> dict[str, Any]:
    """Entries of 500 tokens (11.5 MB) to pages."""
    torch.set_num_threads(1)
    count, tokens = 24, 500
    entries = [entry(seed, tokens) for seed in range(count)]
    size = sum(kv.nbytes for _, kv in entries)
    pages = torch.zeros(SMOL.shape(tokens), dtype=SMOL.dtype)
    ids = [info.id for info, _ in entries]
    result: dict[str, Any] = {"entry_mb": round(size / count / 1e6, 1)}
    with EntryStore.open(folder / "reads", MODEL, SMOL, 4 << 30, 1 << 32) as store:
        for info, kv in entries:
            store.put(info, kv)
        store.flush(300)
        ours: list[list[float]] = [[] for _ in ids]
        theirs: list[list[float]] = [[] for _ in ids]
        for _ in range(repeats):
            for number, (info, kv) in enumerate(entries):
                ours[number].append(seconds(lambda: pages.copy_(store.read(info.id))))  # noqa: B023
                theirs[number].append(seconds(lambda: pages.copy_(kv)))  # noqa: B023
        assert store.stats().tiers["ram"].hits >= repeats * count
    result["ram"] = compared(size, ours, theirs, "memcpy")
    paths = {path.stem: path for path in (folder / "reads").glob("*/*/??/*.safetensors")}
    with EntryStore.open(folder / "reads", MODEL, SMOL, 0, 1 << 32) as store:
        ours, theirs = [[] for _ in ids], [[] for _ in ids]
        buffer = bytearray(max(path.stat().st_size for path in paths.values()))
        for _ in range(repeats):
            for number, id in enumerate(ids):
                drop([paths[id]])
                ours[number].append(seconds(lambda: pages.copy_(store.read(id))))  # noqa: B023
                drop([paths[id]])
                theirs[number].append(seconds(lambda: read_raw(paths[id], buffer)))  # noqa: B023
    result["disk"] = compared(size, ours, theirs, "sequential_read")
    return result


def compared(
    size: int, ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]], name: str
) -> dict[str, float]:
    """`ratio`: of every entry's fastest runs, so that others' use of the machine counts little; and the spread."""
    best_ours, best_theirs = sum(map(min, ours)), sum(map(min, theirs))
    ratios = sorted(
        b / a for mine, other in zip(ours, theirs, strict=True) for a, b in zip(mine, other, strict=True)
    )
    return {
        "gb_s": round(size / best_ours / 1e9, 2),
        f"{name}_gb_s": round(size / best_theirs / 1e9, 2),
        "ratio": round(best_theirs / best_ours, 2),
        "ratio_of_one_run_median": round(statistics.median(ratios), 2),
        "ratio_of_one_run_p10": round(ratios[len(ratios) // 10], 2),
        "ratio_of_one_run_p90": round(ratios[9 * len(ratios) // 10], 2),
    }


def drop(files: Sequence[Path]) -> None:
    """Take files out of the page cache."""
    for path in files:
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def read_raw(path: Path, buffer: bytearray) -> None:
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


# catalog and opening


def rows(count: int) -> Iterator[Row]:
    tokens = as_tokens(np.random.default_rng(0).integers(0, 50_000, 1 << 20))
    for number in range(count):
        id = blake3(number.to_bytes(8, "little")).hexdigest()
        own = tokens[number * 37 % 900_000 :][: 40 + number % 160]
        yield Row(EntryInfo(id, "", id, "", number % 1000, own), 4096, 1e9 + number, 1e9 + number, 0)


def catalog(folder: Path, count: int = 100_000) -> dict[str, Any]:
    (folder / "catalog").mkdir()
    found, _ = Catalog.open(folder / "catalog" / "catalog.db")
    found.register(MODEL, SMOL.to_json())
    made = list(rows(count))
    ids = [row.info.id for row in made]
    np.random.default_rng(1).shuffle(ids)
    batches = range(0, count, 1000)
    work: dict[str, tuple[int, Callable[[], Any]]] = {
        "insert": (count, lambda: [found.upsert(MODEL, made[a : a + 1000]) for a in batches]),
        "look_up": (count, lambda: [found.salt_of(MODEL, id) for id in ids]),
        "note_uses": (
            count,
            lambda: [found.touch(MODEL, dict.fromkeys(ids[a : a + 1000], (1, 2e9))) for a in batches],
        ),
        "list": (count, lambda: sum(1 for _ in found.rows(MODEL))),
        "delete": (count, lambda: [found.delete_ids(MODEL, ids[a : a + 1000]) for a in batches]),
    }
    result = {}
    for name, (number, one) in work.items():
        cpu = time.process_time()
        wall_s = seconds(one)
        cpu_s = time.process_time() - cpu
        result[name] = {"per_s": round(number / wall_s), "per_cpu_s": round(number / cpu_s)}
    found.close()
    return result


def opening(folder: Path, count: int) -> dict[str, Any]:
    root = folder / "opening"
    EntryStore.open(root, MODEL, SMOL, 0, 1 << 40).close()
    found, _ = Catalog.open(root / "catalog.db")
    base = root / "file"
    made = rows(count)
    number = 0
    for shard in range(256):
        (root / MODEL[:16] / "shared" / f"{shard:02x}").mkdir(parents=True)
    while batch := list(islice(made, 5000)):
        found.upsert(MODEL, batch)
        for row in batch:
            if number % 30_000 == 0:  # a file system allows so many names a file
                base = root / f"file{number}"
                base.write_bytes(b"x" * 4096)
            os.link(base, root / MODEL[:16] / "shared" / row.info.id[:2] / f"{row.info.id}.safetensors")
            number += 1
    found.close()
    times = []
    for _ in range(5):
        began = time.perf_counter()
        store = EntryStore.open(root, MODEL, SMOL, 0, 1 << 40)
        assert store.stats().entries == count
        next(store.infos())
        times.append(time.perf_counter() - began)
        store.close()
    store = EntryStore.open(root, MODEL, SMOL, 0, 1 << 40)
    list_s = seconds(lambda: sum(1 for _ in store.infos()))
    began = time.perf_counter()
    store._disk.settled(3600)
    compare_s = list_s + time.perf_counter() - began
    store.close()
    return {
        "entries": count,
        "open_s": round(statistics.median(times), 3),
        "open_s_max": round(max(times), 3),
        "list_per_s": round(count / list_s),
        "compared_with_files_s_at_most": round(compare_s, 1),
    }


# eviction


class Access(NamedTuple):
    at: float
    block: str
    tokens: int
    position: int

    @property
    def cost(self) -> float:
        return self.tokens * (1 + (self.position + self.tokens / 2) / ATTENTION_TOKENS)


def accesses() -> tuple[list[Access], str]:
    """What prompts ask for, block by block: of the recorded traces, or made up where there are none."""
    found: list[Access] = []
    paths = sorted(TRACES.glob("*.jsonl.gz"))
    base = 0.0
    for path in paths:
        with gzip.open(path, "rt") as lines:
            requests = [json.loads(line) for line in lines]
        for request in requests:
            position = 0
            for text in strings(request["body"]):
                for block in re.split(r"\n(?=\S)|\n\n", text):
                    for start in range(0, len(block), 1024):
                        piece = block[start : start + 1024]
                        if len(piece) >= 64:
                            digest = blake3(piece.encode()).hexdigest(8)
                            found.append(Access(base + request["t"], digest, len(piece) // 4, position))
                        position += len(piece) // 4
        base += requests[-1]["t"] + 60
    if found:
        return found, f"{len(paths)} recorded traces"
    rng = np.random.default_rng(0)
    tokens = np.clip(rng.lognormal(np.log(80), 0.9, 4000), 16, 600).astype(int)
    for number in range(30_000):
        block = int(rng.zipf(1.2)) % 4000 if rng.random() < 0.7 else (number // 3) % 4000
        found.append(Access(number * 0.1, str(block), int(tokens[block]), int(rng.integers(0, 20_000))))
    return found, "made up"


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from strings(one)
    elif isinstance(value, list):
        for one in value:
            yield from strings(one)


def eviction() -> dict[str, Any]:
    trace, source = accesses()
    sizes = {one.block: 4096 + one.tokens * SMOL.token_bytes for one in trace}
    result: dict[str, Any] = {
        "traces": source,
        "accesses": len(trace),
        "blocks": len(sizes),
        "served_share_of_cost": {},
    }
    for share in (0.05, 0.1, 0.2, 0.4):
        capacity = int(share * sum(sizes.values()))
        result["served_share_of_cost"][f"{share:.0%} of all bytes"] = {
            "lru": round(served(trace, capacity, LeastRecentlyUsed()), 4),
            "expected_value": round(served(trace, capacity, ExpectedValue()), 4),
            "offline_optimum": round(optimum(trace, capacity), 4),
        }
    return result


def served(trace: Sequence[Access], capacity: int, policy: EvictionPolicy) -> float:
    """As a tier evicts: the least worthy of its `SAMPLE` least recently used entries."""
    kept: OrderedDict[str, Candidate] = OrderedDict()
    used, hit = 0, 0.0
    for number, one in enumerate(trace):
        now, size = one.at + 1e-6 * number, 4096 + one.tokens * SMOL.token_bytes
        before = kept.get(one.block)
        if before is not None:
            hit += one.cost
            kept[one.block] = Candidate(
                one.block, size, one.tokens, before.position, before.created, now, before.uses + 1
            )
            kept.move_to_end(one.block)
            continue
        while kept and used + size > capacity:
            victim = min(islice(kept.values(), SAMPLE), key=lambda c: policy.worth(c, now))
            used -= kept.pop(victim.id).size_bytes
        if size <= capacity:
            kept[one.block] = Candidate(one.block, size, one.tokens, one.position, now, now, 0)
            used += size
    return hit / sum(one.cost for one in trace)


def optimum(trace: Sequence[Access], capacity: int) -> float:
    """Knowing the future (Belady, weighted): close to the best that is possible, not proven to be it."""
    upcoming: dict[str, int] = {}
    following = [0] * len(trace)
    for number in range(len(trace) - 1, -1, -1):
        following[number] = upcoming.get(trace[number].block, -1)
        upcoming[trace[number].block] = number
    kept: dict[str, tuple[int, int, float]] = {}  # size, next use, cost
    used, hit = 0, 0.0
    for number, one in enumerate(trace):
        size = 4096 + one.tokens * SMOL.token_bytes
        if one.block in kept:
            hit += one.cost
            used -= kept.pop(one.block)[0]
        if following[number] < 0:
            continue
        kept[one.block] = (size, following[number], one.cost)
        used += size
        while used > capacity:
            victim = max(kept, key=lambda b: (kept[b][1] - number) * kept[b][0] / kept[b][2])
            used -= kept.pop(victim)[0]
    return hit / sum(one.cost for one in trace)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    sections = ("codecs", "reads", "catalog", "open", "eviction")
    parser.add_argument("--only", nargs="+", choices=sections, default=sections)
    parser.add_argument("--entries", type=int, default=1_000_000, help="of the store that is opened")
    parser.add_argument("--model", default="", help="folder of a model for the KL; none: no KL")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--folder", type=Path, help="where to work (default: the system's temporary folder)")
    parser.add_argument("--json", action="store_true", help="print nothing but the last line")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=args.folder, prefix="agentcache-store-"))
    result: dict[str, Any] = {
        "machine": machine() | {"load": round(os.getloadavg()[0], 1)},
        "torch": torch.__version__,
    }
    work: dict[str, Callable[[], dict[str, Any]]] = {
        "codecs": lambda: codecs(args.model, args.repeats),
        "reads": lambda: reads(folder, args.repeats),
        "catalog": lambda: catalog(folder),
        "open": lambda: opening(folder, args.entries),
        "eviction": eviction,
    }
    try:
        for name in args.only:
            result[name] = work[name]()
            if not args.json:
                print(f"{name}: {json.dumps(result[name], indent=2)}", flush=True)
    finally:
        shutil.rmtree(folder)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
