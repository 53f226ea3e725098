"""How close blended prompts come to full prefill: real code, a real model, the engine's own matcher, planner and pages.

    python benchmarks/quality.py --model MODEL [--prompts N] [--dtype bfloat16|float32] [--json]

Every prompt is prefilled in full; then, on other pages, what each strategy would do is done, and the true
continuation is scored by both: KL over the whole vocabulary, top-1 agreement, the continuation's negative
log-likelihood, and whether 32 greedily generated tokens are the same. `cacheblend15` is CacheBlend's published method:
every block's K/V computed by itself, no sink, 15 % of the matched tokens recomputed, chosen by the deviation of layer
1's keys; `cacheblend_same_share` is the same with our share. What the engine adds to reused K/V
(`agentcache.blend.correction`) is added by all of our strategies but those named `uncorrected`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bounded import add_at_most, bounded
from code_prompts import CONTINUED, KINDS, Case, Corpus

from agentcache.plan import RecomputePolicy, reused_positions
from agentcache.quality.agreement import agreement
from agentcache.settings import EngineSettings

if TYPE_CHECKING:
    from agentcache.quality.probe import Probe

DEFAULT = "boundary+copy"
BUDGET = 0.08
GREEDY = 32
STRATEGIES: dict[str, RecomputePolicy] = {
    "none": RecomputePolicy("none", boundary_tokens=0),
    "boundary 16": RecomputePolicy("boundary", boundary_tokens=16),
    "boundary 4 %": RecomputePolicy("boundary", boundary_tokens=512, budget=0.04),
    "boundary": RecomputePolicy("boundary", boundary_tokens=512, budget=BUDGET),
    "boundary+copy 16": EngineSettings().policy,
    "boundary+copy 4 %": RecomputePolicy("boundary+copy", boundary_tokens=512, budget=0.04),
    "boundary+copy": RecomputePolicy("boundary+copy", boundary_tokens=512, budget=BUDGET),
    "boundary+tail": RecomputePolicy("boundary+tail", boundary_tokens=512, budget=BUDGET),
    "deviation": RecomputePolicy("deviation", budget=BUDGET),
    "boundary+copy 16, uncorrected": EngineSettings().policy,
    "boundary+copy, uncorrected": RecomputePolicy("boundary+copy", boundary_tokens=512, budget=BUDGET),
}
UNCORRECTED = ", uncorrected"
OURS, APART = "ours", "apart"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One strategy on one prompt; shares are of the matched tokens."""

    strategy: str
    recomputed_share: float
    matched_share: float
    mean_kl: float
    top1: float
    dnll: float
    exact32: bool


def measure(worker: Any, case: Case, strategies: Sequence[str]) -> list[Outcome]:
    """Runs in the engine's worker, which vLLM hands in."""
    from agentcache.plugin import process

    assert process.WORKER is not None
    if case.kind not in _PROBES:  # the entries of one kind at a time
        _PROBES.clear()
        _PROBES[case.kind] = process.WORKER.probe()
    probe = _PROBES[case.kind]
    entries = {
        OURS: probe.learn([(stream.tokens, stream.cuts) for stream in case.streams], OURS),
        APART: probe.learn([(stream.tokens, stream.cuts) for stream in case.apart], APART),
    }
    length = len(case.tokens) + GREEDY
    names = [*strategies, "cacheblend15", "cacheblend_same_share"]
    with probe.pages(*[length] * (len(names) + 1)) as pages:
        full = probe.full(case.tokens, case.num_prompt, pages[0])
        targets = _tensor(case.tokens[case.num_prompt :])
        found: list[tuple[str, float, float, Any, int]] = []
        share = BUDGET
        for name, own in zip(names, pages[1:], strict=True):
            policy = STRATEGIES.get(name) or RecomputePolicy(
                "deviation", budget=0.15 if name == "cacheblend15" else share
            )
            domain = OURS if name in STRATEGIES else APART
            corrected = domain == OURS and not name.endswith(UNCORRECTED)
            probe.correct(process.WORKER.correction if corrected else None)
            plan = probe.plan(entries[domain], case.tokens, case.num_prompt, policy, domain)
            predicted, result = probe.blended(plan, policy, case.tokens, case.num_prompt, own)
            matched = max(1, plan.num_matched)
            recomputed = plan.num_matched - len(reused_positions(plan)) + result.topped_up
            if name == DEFAULT:
                share = recomputed / matched
            found.append(
                (
                    name,
                    recomputed / matched,
                    plan.num_matched / case.num_prompt,
                    agreement(full, predicted, targets),
                    int(predicted[0].argmax()),
                )
            )
        firsts = [int(full[0].argmax()), *(first for *_, first in found)]
        written = probe.greedy(firsts, case.num_prompt, GREEDY, pages)
    return [
        Outcome(name, recomputed, matched, a.mean_kl, a.top1, a.dnll, written[0] == own)
        for (name, recomputed, matched, a, _), own in zip(found, written[1:], strict=True)
    ]


_PROBES: dict[str, Probe] = {}


def _tensor(tokens: Any) -> Any:
    import torch

    return torch.from_numpy(tokens).long()


def row(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The mean of one strategy's outcomes."""
    return {
        "strategy": outcomes[0].strategy,
        **{
            name: statistics.fmean(float(getattr(one, name)) for one in outcomes)
            for name in ("recomputed_share", "matched_share", "mean_kl", "top1", "dnll", "exact32")
        },
        "kl_standard_error": statistics.stdev(one.mean_kl for one in outcomes) / len(outcomes) ** 0.5
        if len(outcomes) > 1
        else None,
    }


def summarise(outcomes: Sequence[list[Outcome]]) -> dict[str, Any]:
    by_name: dict[str, list[Outcome]] = {}
    for case in outcomes:
        for one in case:
            by_name.setdefault(one.strategy, []).append(one)
    rows = {name: row(found) for name, found in by_name.items()}
    return {
        "prompts": len(outcomes),
        "default": rows[DEFAULT],
        "cacheblend15": rows.pop("cacheblend15"),
        "cacheblend_same_share": rows.pop("cacheblend_same_share"),
        "strategies": rows,
    }


def show(kind: str, summary: dict[str, Any]) -> None:
    print(f"\n{kind}: {summary['prompts']} prompts", file=sys.stderr)
    rows = {**summary["strategies"], **{n: summary[n] for n in ("cacheblend15", "cacheblend_same_share")}}
    for name, one in rows.items():
        error = one["kl_standard_error"] or 0.0
        print(
            f"  {name:30s} recomputed {one['recomputed_share']:6.1%}  KL {one['mean_kl']:.4f} ± {error:.4f}"
            f"  top-1 {one['top1']:.1%}  dNLL {one['dnll']:+.4f}  exact32 {one['exact32']:.0%}",
            file=sys.stderr,
            flush=True,
        )


def start(model: str, dtype: str, kv_gib: int, store: Path) -> Any:
    """vLLM in this process and its worker, with the plug-in."""
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_PLUGINS", "agentcache")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(kv_gib))
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from vllm import LLM

    from agentcache.engine import transfer_config

    settings = EngineSettings(store_dir=str(store), ram_bytes=1 << 20, disk_bytes=1 << 20)
    return LLM(
        model=model,
        dtype=dtype,
        max_model_len=8192,
        enforce_eager=True,
        kv_transfer_config=transfer_config(settings),
        disable_log_stats=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--prompts", type=int, default=40, help="a kind")
    add_at_most(parser, "third prompt of a kind")
    parser.add_argument("--tokens", type=int, default=2000, help="of code in a prompt")
    parser.add_argument("--dtype", default="auto", choices=("auto", "bfloat16", "float32"), help="as `serve`")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument(
        "--strategies", nargs="+", default=list(STRATEGIES), choices=STRATEGIES, help="beside the default"
    )
    parser.add_argument("--kv-gib", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", type=Path, help="write every outcome to this file, too")
    options = parser.parse_args()
    from tokenizers import Tokenizer

    from agentcache.context import Streams
    from agentcache.models import resolve
    from agentcache.processor import dtype_for

    began = time.perf_counter()
    folder = resolve(options.model)
    streams = Streams(folder, 8191)
    corpus = Corpus(Tokenizer.from_file(f"{folder}/tokenizer.json"), streams, options.tokens // 2)
    strategies = list(dict.fromkeys([DEFAULT, *options.strategies]))
    cases = {kind: corpus.cases(kind, options.prompts, options.tokens) for kind in options.kinds}
    kinds: dict[str, Any] = {}
    raw: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        llm = start(folder, dtype_for(options.dtype, folder), options.kv_gib, Path(scratch))
        correction = llm.collective_rpc("agentcache_selftest")[0]["correction"]
        print(f"correction of reused K/V: {correction}", file=sys.stderr, flush=True)
        dtype = str(llm.llm_engine.model_config.dtype).removeprefix("torch.")
        for kind, ours in cases.items():
            outcomes = []
            for number, case in enumerate(bounded(ours, 2, options.at_most)):
                outcomes.append(llm.collective_rpc(measure, args=(case, strategies))[0])
                print(f"\r{kind} {number + 1}/{len(ours)}", end="", file=sys.stderr, flush=True)
            kinds[kind] = summarise(outcomes)
            raw[kind] = [[asdict(one) for one in case] for case in outcomes]
            show(kind, kinds[kind])
        llm.llm_engine.engine_core.shutdown()
    if options.keep:
        options.keep.write_text(json.dumps(raw))
    if options.json:
        print(
            json.dumps(
                {
                    "model": options.model if not Path(options.model).exists() else Path(options.model).name,
                    "dtype": dtype,
                    "correction": correction,
                    "packages": sorted(corpus.packages),
                    "prompt_tokens": statistics.fmean(
                        case.num_prompt
                        for kind, ours in cases.items()
                        for case in ours[: kinds[kind]["prompts"]]
                    ),
                    "continued_tokens": CONTINUED,
                    "seconds": round(time.perf_counter() - began),
                    "kinds": kinds,
                }
            )
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
