"""Run by the tests: engines with tiny models, one after the other in this process. Prints a JSON line for each.

python -m tests.parity.measure FOLDER NAME...

Each line tells how far blending lies from full prefill, and how far off it is when something is wrong on purpose.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",  # the engine in this process: its parts can be reached, and broken
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind",  # two of these processes run beside each other
    OMP_NUM_THREADS="1",
    VLLM_PLUGINS="agentcache",
    VLLM_LOGGING_LEVEL="ERROR",
    HF_HUB_OFFLINE="1",
)

import numpy as np
import torch

from tests.parity.tiny import LATENT, MAX_POSITIONS, ON_GPU, REFUSED, SUPPORTED, VOCABULARY, Tiny, write

Runs = Any
MOVES = (1, 777, 3000)


class TinyEngine:
    """vLLM with one tiny model and the plug-in, and what the tests do with it."""

    def __init__(self, tiny: Tiny, folder: Path) -> None:
        from vllm import LLM
        from vllm.config import KVTransferConfig

        from agentcache.engine import transfer_config
        from agentcache.plugin import process
        from agentcache.settings import EngineSettings

        settings = EngineSettings(store_dir=str(folder / "store"))
        self.llm = LLM(
            model=str(folder),
            **{
                "dtype": os.environ.get("AGENTCACHE_PARITY_DTYPE", "float32"),
                "enforce_eager": True,
                "max_model_len": MAX_POSITIONS,
                "max_num_batched_tokens": 512,  # prompts are longer: pieces
                "max_logprobs": -1,
                "seed": 0,
                "skip_tokenizer_init": True,
                "kv_transfer_config": KVTransferConfig(**transfer_config(settings)),
                **({"num_gpu_blocks_override": 1024} if torch.cuda.is_available() else {}),
                **dict(tiny.engine),
            },
        )
        assert process.WORKER is not None
        self.worker = process.WORKER
        self.without_context = tiny in LATENT.values()
        self._asked = 0

    def ask(self, prompt: list[int], **wish: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        """Logprobs of the whole vocabulary behind the prompt, [V], and the request's counters. No page is shared."""
        from vllm import SamplingParams

        self._asked += 1
        params = SamplingParams(
            max_tokens=2,  # a request that ends with its first step is over before it is known what the step did
            ignore_eos=True,
            temperature=0,
            logprobs=-1,
            detokenize=False,
            extra_args={"kv_transfer_params": {"agentcache": wish}},
        )
        request: Any = {"prompt_token_ids": prompt, "cache_salt": str(self._asked)}
        output = self.llm.generate([request], params, use_tqdm=False)[0]
        first = output.outputs[0].logprobs[0]
        logprobs = torch.tensor([first[token].logprob for token in range(VOCABULARY)])
        return logprobs, (output.kv_transfer_params or {}).get("agentcache", {})

    def stop(self) -> None:
        from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

        self.llm.llm_engine.engine_core.shutdown()
        del self.llm
        gc.collect()
        cleanup_dist_env_and_memory()


def measured(engine: TinyEngine) -> dict[str, Any]:
    """All figures of a supported model."""
    random = np.random.default_rng(1)
    a, b, c, head, middle, tail = (
        random.integers(0, VOCABULARY, size).tolist() for size in (300, 250, 200, 37, 23, 41)
    )
    engine.ask(a + b + c, store={"cuts": [0, 300, 550, 750], "domain": "index"})
    prompt = head + c + middle + a + b[:180] + tail
    exact, _ = engine.ask(prompt, mode="exact")
    figures: dict[str, Any] = {}

    def compare(name: str, reference: torch.Tensor, prompt: list[int], **wish: Any) -> None:
        logprobs, counters = engine.ask(prompt, mode="fast", min_saved_tokens=0, **wish)
        figures[name] = (logprobs - reference).abs().max().item()
        figures[f"{name}, tokens"] = [counters["reused_tokens"], counters["recomputed_tokens"]]

    compare("all", exact, prompt, strategy="all")
    figures |= moved(engine, np.array(a, np.int32))
    figures |= corrected(engine, np.array(a, np.int32), np.array(b[:150], np.int32))
    if engine.without_context:
        return figures
    with patch("agentcache.blend.forward.runs", cut_at_random):
        compare("all in runs", exact, prompt, strategy="all")
        for change in (-40, 40):
            with wrong_lengths(change):
                compare(f"seq_len {change:+}", exact, prompt, strategy="all")
    short = head + c + tail  # few enough to stand in the step's own batch
    expected, _ = engine.ask(short, mode="exact")
    before = engine.worker.status()["forwards"]["joined"]
    compare("all, joined", expected, short, strategy="all")
    with wrong_lengths(-40):
        compare("joined, seq_len -40", expected, short, strategy="all")
    with patch("agentcache.blend.joined._first", lambda output, _: output.roll(1, 0)):
        compare("joined, others' outputs", expected, short, strategy="all")
    figures["joined"] = engine.worker.status()["forwards"]["joined"] - before
    in_place, _ = engine.ask(a + b + c + tail, mode="exact")
    compare("in place", in_place, a + b + c + tail)
    compare("boundary", exact, prompt)
    compare("none", exact, prompt, strategy="none")
    for strategy in ("deviation", "boundary+tail"):
        compare(strategy, exact, prompt, strategy=strategy, budget=0.2)
    status = engine.worker.status()
    return figures | {"reason": status["unsupported"], "counted": status["fallbacks"]}


def cut_at_random(positions: Any) -> Runs:
    """The positions, which follow each other, as runs of 1 to 150."""
    random = np.random.default_rng(3)
    cuts = [int(positions[0])]
    while cuts[-1] <= positions[-1]:
        cuts.append(min(cuts[-1] + int(random.choice([1, 2, 7, 33, 64, 150])), int(positions[-1]) + 1))
    return np.stack([cuts[:-1], cuts[1:]], axis=1).astype(np.int32)


@contextmanager
def wrong_lengths(change: int) -> Iterator[None]:
    """Every virtual request behind the first tokens sees so many tokens more, or fewer, than it should."""
    from agentcache.blend import virtual

    original = virtual.CommonAttentionMetadata

    def wrong(**given: Any) -> Any:
        queries = given["query_start_loc_cpu"].diff()
        lengths = given["seq_lens_cpu_upper_bound"]
        wrong = torch.where(lengths > 100, torch.maximum(lengths + change, queries), lengths)
        given.update(seq_lens=wrong, seq_lens_cpu_upper_bound=wrong, max_seq_len=int(wrong.max()))
        return original(**given)

    with patch.object(virtual, "CommonAttentionMetadata", wrong):
        yield


def moved(engine: TinyEngine, tokens: np.ndarray) -> dict[str, Any]:
    """The stored first block, placed further back by the executor, against its K/V computed there."""
    from agentcache.blend.trial import computed_kv, moved_error
    from agentcache.plan.types import Plan, Span

    executor = engine.worker._executor
    assert executor is not None
    forward, paged, shift = executor._forward, executor._paged, executor._shift
    store = engine.worker.store
    assert store is not None
    entry = next(info for info in store.infos() if info.position == 0)
    count = len(tokens)
    pages = range(paged.num_pages - (MAX_POSITIONS + paged.page_size - 1) // paged.page_size, paged.num_pages)
    nowhere = np.empty(0, np.int64)
    figures: dict[str, Any] = {"moved": 0.0, "moved by one too many": float("inf")}
    with paged.borrowed(pages):
        here = computed_kv(forward, paged, tokens, pages, 0)
        for distance in MOVES:
            expected = computed_kv(forward, paged, tokens, pages, distance)
            where = torch.arange(distance, distance + count)

            def placed(by: int, distance: int = distance, where: torch.Tensor = where) -> torch.Tensor:
                span = Span(distance, count, entry.id, 0, by, False, False)
                plan = Plan(distance, distance + count, (span,), nowhere)
                executor.execute(plan, np.zeros(MAX_POSITIONS, np.int32), pages)
                return paged.read(paged.slots(pages, where)).float()

            kv = placed(distance)
            figures["moved"] = max(figures["moved"], distance_of(kv, expected))
            off = distance_of(placed(distance - 1), expected)
            figures["moved by one too many"] = min(figures["moved by one too many"], off)
    figures["trial"] = moved_error(shift, here[0], expected[0], MOVES[-1])
    other = replace(shift, neox=not shift.neox)
    figures["trial, other pairs"] = moved_error(other, here[0], expected[0], MOVES[-1])
    return figures


def corrected(engine: TinyEngine, block: np.ndarray, before: np.ndarray) -> dict[str, Any]:
    """What is left of a block's mean deviation where it is placed behind other tokens with its correction.

    As a share of what it is without one; also with each layer's correction given to the next.
    """
    from agentcache.blend.correction import EDGES, Correction, Deviations
    from agentcache.plan import RecomputePolicy

    probe = engine.worker.probe()
    tokens = np.concatenate([before, block, block[:1]])
    entries = probe.learn([(block, (0, len(block)))], "corrected")
    policy = RecomputePolicy("none", min_saved_tokens=0, tail_tokens=0)
    plan = probe.plan(entries, tokens, len(tokens), policy, "corrected")
    own = np.arange(len(before) + EDGES[0], len(before) + len(block))  # a mean of its own, of enough tokens
    where = torch.from_numpy(own)
    with probe.pages(len(tokens), len(tokens)) as (ours, theirs):
        probe.full(tokens, len(tokens) - 1, ours)
        found = probe.deviations(plan, ours)
        assert found is not None
        full = probe._paged.read(probe._paged.slots(ours, where))

        def left(means: torch.Tensor | None) -> float:
            probe.correct(Correction(means, 1.0, 0, 0.0, 0.0) if means is not None else None)
            probe._executor.execute(plan, tokens, theirs)
            placed = probe._paged.read(probe._paged.slots(theirs, where))
            return Deviations.of(full, placed, where, where, probe._shift).means()[1:].norm().item()

        means = found.means()
        before_it, after_it, wrong = left(None), left(means), left(means.roll(1, 2))
    return {
        "corrected, tokens": [len(entries), plan.num_matched],
        "corrected": after_it / before_it,
        "corrected by another layer's": wrong / before_it,
    }


def distance_of(kv: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative: the length of the difference over the length of what is expected; the largest of keys and values."""
    difference = (kv - expected).flatten(1).norm(dim=1) / expected.flatten(1).norm(dim=1)
    return difference.max().item()


def report(tiny: Tiny, folder: Path) -> dict[str, Any]:
    """One model's figures, or why it is not blended."""
    os.environ["VLLM_MLA_DISABLE"] = "0" if tiny.mla else "1"
    write(tiny, folder)
    lifted = patch("agentcache.plugin.connector.why_unsupported", lambda *_: "")
    with lifted if tiny in LATENT.values() else nullcontext():
        engine = TinyEngine(tiny, folder)
    try:
        figures: dict[str, Any] = {
            "runner": runner_name(),
            "reason": engine.worker.status()["unsupported"],  # as GET /agentcache/status says it
        }
        if engine.worker.status()["blending"]:
            figures |= measured(engine)
        elif not tiny.silent:
            figures["fallback"] = engine.ask([5, 6, 7], mode="fast")[1]["fallback"]
        return figures
    finally:
        engine.stop()


def runner_name() -> str:
    """V1 or V2, of vLLM's model runners."""
    from agentcache.plugin import process

    bases = [kind.__module__ for kind in type(process.RUNNER).__mro__]
    return "V2" if "vllm.v1.worker.gpu.model_runner" in bases else "V1"


def main(root: str, *names: str) -> None:
    if os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "1" and not torch.cuda.is_available():
        _interpret_triton()
    start_cheaply()
    for name in names:
        try:
            figures = report(
                {**SUPPORTED, **LATENT, **ON_GPU, **REFUSED}[name], Path(root) / name.replace(" ", "-")
            )
        except Exception as error:
            figures = {"error": "".join(traceback.format_exception(error))}
        print(json.dumps({"name": name, **figures}), flush=True)


def _interpret_triton() -> None:
    """Let Triton's interpreter stand for the CPU backend that its wheels lack: vLLM's V2 model runner insists on one.

    The few kernels of that runner which have no C++ twin on CPUs are interpreted; they are small.
    """
    os.environ["TRITON_INTERPRET"] = "1"
    from triton.backends import backends

    active = SimpleNamespace(is_active=lambda: True)
    backends["cpu"] = SimpleNamespace(driver=active, compiler=None)  # type: ignore[assignment]


def start_cheaply() -> None:
    """Have vLLM inspect its model classes here, not in a process each, and start its CPU worker more than once."""
    from vllm.model_executor.models import registry
    from vllm.platforms import current_platform

    registry._run_in_subprocess = lambda inspect: inspect()
    if torch.cuda.is_available():
        return
    kind: Any = type(current_platform)
    first_time = kind.register_triton_kernel_overrides

    def once(*_: Any) -> None:
        # It walks all loaded modules and fails on numba's (docs/engine.md), which the first engine has loaded.
        kind.register_triton_kernel_overrides = lambda *_: None
        first_time()

    kind.register_triton_kernel_overrides = once


if __name__ == "__main__":
    main(*sys.argv[1:])
