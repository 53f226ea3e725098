"""Run by test_situations.py: one engine after the other in this process, each in a situation vLLM offers.

python -m tests.engine.situations FOLDER NAME...

Prints a JSON line for each: how far blended answers lie from what they must equal, and what was counted. The model is
tiny and random, in float32 where equality is asked, so that a token more or less in the wrong place is seen.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from tests.parity.measure import TinyEngine, start_cheaply  # sets vLLM's environment: before vllm and torch
from tests.parity.tiny import VOCABULARY, Tiny, write

PAGES = 16
"""Of 128 tokens, so that a few requests that generate fill the pool."""
CHUNK = 256
"""Tokens a step: prompts are prefilled in many chunks."""
SMALL: dict[str, Any] = {
    "max_num_batched_tokens": CHUNK,
    "max_model_len": 1536,
    "max_num_seqs": 8,
    "num_gpu_blocks_override": PAGES,
    "scheduling_policy": "priority",
}
_random = np.random.default_rng(5)
A, B, C, HEAD, TAIL = (_random.integers(3, VOCABULARY, n).tolist() for n in (300, 250, 200, 37, 41))
PROMPT = HEAD + C + A + B[:180] + TAIL
IN_PLACE = A + B + C + TAIL
Answer = dict[str, Any]


class Engine(TinyEngine):
    """One engine in one situation, with A, B and C stored where it can store."""

    def __init__(self, folder: Path, **engine: Any) -> None:
        super().__init__(Tiny("LlamaConfig", {}, engine=tuple(engine.items())), folder)
        self.generate([A + B + C], store={"cuts": [0, 300, 550, 750], "domain": "index"})

    def generate(
        self,
        prompts: Sequence[list[int]],
        *,
        tokens: int = 4,
        priority: Sequence[int] | None = None,
        lora: Sequence[Any] | None = None,
        **wish: Any,
    ) -> list[Answer]:
        """All prompts at once: tokens, the first's logprobs over the vocabulary, counters. No page is shared."""
        from vllm import SamplingParams

        params = SamplingParams(
            max_tokens=tokens,
            ignore_eos=True,
            temperature=0,
            logprobs=-1,
            detokenize=False,
            extra_args={"kv_transfer_params": {"agentcache": wish}},
        )
        outputs = self._run(prompts, params, priority=priority, lora_request=lora)
        answers = []
        for output in outputs:
            first = output.outputs[0].logprobs[0]
            logprobs = torch.tensor([first[token].logprob for token in range(VOCABULARY)])
            counters = (output.kv_transfer_params or {}).get("agentcache", {})
            answers.append(
                {"tokens": list(output.outputs[0].token_ids), "first": logprobs, "counters": counters}
            )
        return answers

    def sampled(self, prompt: list[int], n: int, seed: int) -> list[list[int]]:
        """`n` random continuations of a blended prompt."""
        from vllm import SamplingParams

        params = SamplingParams(n=n, seed=seed, max_tokens=8, ignore_eos=True, detokenize=False)
        (output,) = self._run([prompt], params)
        return [list(one.token_ids) for one in output.outputs]

    def _run(self, prompts: Sequence[list[int]], params: Any, **more: Any) -> Any:
        requests: Any = []
        for prompt in prompts:
            self._asked += 1
            requests.append({"prompt_token_ids": prompt, "cache_salt": str(self._asked)})
        return self.llm.generate(requests, params, use_tqdm=False, **more)

    @property
    def scheduler(self) -> Any:
        """vLLM's."""
        return self.llm.llm_engine.engine_core.engine_core.scheduler  # type: ignore[attr-defined]


def far(one: Answer, other: Answer) -> float:
    return float((one["first"] - other["first"]).abs().max())


def worst(some: Sequence[Answer], others: Sequence[Answer]) -> float:
    return max(far(one, other) for one, other in zip(some, others, strict=True))


def same_tokens(some: Sequence[Answer], others: Sequence[Answer]) -> bool:
    return [one["tokens"] for one in some] == [other["tokens"] for other in others]


def basics(engine: Engine) -> dict[str, Any]:
    """What holds in every situation that can be blended: two ways to equal full prefill, and one that must not."""
    ((exact,), (own,)) = engine.generate([PROMPT], mode="exact"), engine.generate([IN_PLACE], mode="exact")
    (every,) = engine.generate([PROMPT], strategy="all", min_saved_tokens=0)
    (none,) = engine.generate([PROMPT], strategy="none")
    (in_place,) = engine.generate([IN_PLACE])
    return {
        "all": far(every, exact),
        "in place": far(in_place, own),
        "none": far(none, exact),
        "all, tokens": every["counters"]["recomputed_tokens"],
        "in place, tokens": in_place["counters"]["reused_tokens"],
        "fallback": every["counters"]["fallback"],
    }


def small(engine: Engine) -> dict[str, Any]:
    """Chunks, many requests at once, a full pool, several answers of one prompt."""
    figures = basics(engine)
    prompts = [HEAD[i:] + C[: 100 + 10 * i] + B[:90] + A[: 150 - i] + TAIL for i in range(8)]
    alone = [engine.generate([prompt], tokens=6)[0] for prompt in prompts]
    with watched(engine) as steps:
        together = engine.generate(prompts, tokens=6)
    figures |= {
        "at once": worst(alone, together),
        "at once, tokens": same_tokens(alone, together),
        "at once, blended": min(one["counters"]["reused_tokens"] for one in together),
        "largest step": max(sum(step) for step in steps),
        "largest request": max(max(step) for step in steps),
        "most in a step": max(len(step) for step in steps),
    }
    seeds = [engine.sampled(PROMPT, 1, seed)[0] for seed in (7, 8, 9)]
    figures |= {"n": sorted(engine.sampled(PROMPT, 3, 7)) == sorted(seeds), "n, differ": seeds[0] != seeds[1]}
    return figures | preemption(engine)


def preemption(engine: Engine) -> dict[str, Any]:
    """Three long answers do not fit the pool: the least important request is thrown out, and comes back."""
    prompts = [HEAD[i:] + C + A[: 280 + i] + TAIL for i in range(3)]
    alone = [engine.generate([prompt], tokens=200)[0] for prompt in prompts]
    original, thrown = type(engine.scheduler)._preempt_request, []

    def preempt(self: Any, request: Any, *more: Any, **named: Any) -> Any:
        thrown.append(request.request_id)
        return original(self, request, *more, **named)

    with patch.object(type(engine.scheduler), "_preempt_request", preempt), watched(engine) as steps:
        together = engine.generate(prompts, tokens=200, priority=[2, 1, 0])
    return {
        "preempted": len(thrown),
        "preempted, loads": sum(len(step) for step in steps),
        "preempted, tokens": same_tokens(alone, together),
        "preempted, reused": min(one["counters"]["reused_tokens"] for one in together),
    }


class watched:
    """While it lasts, the recomputed tokens of every load, by step."""

    def __init__(self, engine: Engine) -> None:
        self._executor: Any = engine.worker._executor
        self.steps: list[list[int]] = []

    def __enter__(self) -> list[list[int]]:
        original = self._executor.execute_all

        def execute_all(jobs: Any, *more: Any) -> Any:
            self.steps.append([len(job.plan.recompute) for job in jobs])
            return original(jobs, *more)

        self._executor.execute_all = execute_all
        return self.steps

    def __exit__(self, *_: object) -> None:
        del self._executor.execute_all


def adapters(engine: Engine) -> dict[str, Any]:
    """Requests with an adapter are left alone, and do not disturb those without in the same step."""
    from vllm.lora.request import LoRARequest

    figures = basics(engine)
    folder = Path(engine.llm.llm_engine.model_config.model)
    adapter = LoRARequest("tiny", 1, str(write_adapter(folder)))
    (exact,) = engine.generate([PROMPT], mode="exact")
    (with_adapter,) = engine.generate([PROMPT], lora=[adapter], mode="exact")
    (asked_fast,) = engine.generate([PROMPT], lora=[adapter])
    both = engine.generate(
        [TAIL, PROMPT, TAIL[1:], PROMPT[1:]],
        tokens=6,
        lora=[adapter, None, adapter, None],
        strategy="all",
        min_saved_tokens=0,
    )
    before = len(list(engine.worker.store.infos()))  # type: ignore[union-attr]
    private = list(reversed(A))
    (stored,) = engine.generate([private], lora=[adapter], store={"cuts": [0, 300], "domain": "index"})
    return figures | {
        "the adapter changes answers": far(exact, with_adapter),
        "with an adapter": far(with_adapter, asked_fast),
        "with an adapter, fallback": asked_fast["counters"]["fallback"],
        "beside it": far(both[1], exact),
        "beside it, recomputed": both[1]["counters"]["recomputed_tokens"],
        "stored with an adapter": len(list(engine.worker.store.infos())) - before,  # type: ignore[union-attr]
        "stored with an adapter, fallback": stored["counters"]["fallback"],
    }


def write_adapter(folder: Path) -> Path:
    """A random LoRA adapter for the queries and values of the tiny Llama."""
    from safetensors.torch import save_file

    target = folder / "adapter"
    target.mkdir()
    random = torch.Generator().manual_seed(3)
    weights = {}
    for layer in range(3):
        for name, out in (("q_proj", 128), ("v_proj", 64)):
            key = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{key}.lora_A.weight"] = torch.randn(8, 128, generator=random)
            weights[f"{key}.lora_B.weight"] = torch.randn(out, 8, generator=random) * 0.2
    save_file(weights, target / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]}
    (target / "adapter_config.json").write_text(json.dumps(config))
    return target


def refused(engine: Engine) -> dict[str, Any]:
    """Nothing is blended, and the answer is what it would be without asking."""
    (fast,), (exact,) = engine.generate([PROMPT], tokens=6), engine.generate([PROMPT], mode="exact", tokens=6)
    return {
        "difference": far(exact, fast),
        "tokens": fast["tokens"] == exact["tokens"],
        "reused": fast["counters"]["reused_tokens"],
        "fallback": fast["counters"]["fallback"],
        "counted": engine.worker.status()["fallbacks"],
    }


def asynchronous() -> Any:
    """vLLM's CPU platform always switches asynchronous scheduling off: switched on again behind it."""
    from vllm.platforms import current_platform

    original = type(current_platform).check_and_update_config

    def check(_: Any, config: Any) -> None:
        original(config)
        config.scheduler_config.async_scheduling = True

    return patch.object(type(current_platform), "check_and_update_config", classmethod(check))


SITUATIONS: dict[str, tuple[Callable[[Engine], dict[str, Any]], dict[str, Any]]] = {
    "prefix caching": (small, {**SMALL}),
    "no prefix caching": (small, {**SMALL, "enable_prefix_caching": False}),
    "no chunked prefill": (basics, {"enable_chunked_prefill": False, "max_num_batched_tokens": 4096}),
    "asynchronous": (small, {**SMALL}),
    "compiled": (basics, {"enforce_eager": False}),
    "bfloat16": (basics, {"dtype": "bfloat16"}),
    "float16": (basics, {"dtype": "float16"}),
    # Of two slots one stays free: vLLM 0.32's operators on CPUs apply the last one where there is no adapter.
    "LoRA": (adapters, {"enable_lora": True, "max_lora_rank": 8, "max_loras": 2}),
    "speculative decoding": (
        refused,
        {
            "speculative_config": {
                "method": "ngram",
                "num_speculative_tokens": 3,
                "prompt_lookup_max": 3,
                "prompt_lookup_min": 1,
            }
        },
    ),
    "fp8 KV cache": (refused, {"dtype": "bfloat16", "kv_cache_dtype": "fp8"}),
}


def report(name: str, folder: Path) -> dict[str, Any]:
    measure, engine = SITUATIONS[name]
    write(Tiny("LlamaConfig", {}), folder)
    with asynchronous() if name == "asynchronous" else nullcontext():
        running = Engine(folder, **engine)
    try:
        config = running.llm.llm_engine.vllm_config
        return {
            "chunked": config.scheduler_config.enable_chunked_prefill,
            "async": config.scheduler_config.async_scheduling,
            "reason": running.worker.status()["unsupported"],
            **measure(running),
            "forwards": running.worker.status()["forwards"],
        }
    finally:
        running.stop()


def main(root: str, *names: str) -> None:
    start_cheaply()
    for name in names:
        try:
            figures = report(name, Path(root) / name.replace(" ", "-"))
        except BaseException as error:
            figures = {"error": "".join(traceback.format_exception(error))}
        print(json.dumps({"name": name, **figures}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
