"""Run by test_breaker.py: engines whose blending, or matching, fails, one after the other in this process.

python -m tests.engine.broken_engine MODEL_FOLDER FOLDER

Prints a JSON line for each of `FAILURES`: what happened.
"""

from __future__ import annotations

import gc
import json
import sys
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.parity.measure import start_cheaply  # sets vLLM's environment: before vllm and torch


def injected(*_: Any, **__: Any) -> None:
    raise RuntimeError("injected")


def broken(target: str, how: Callable[..., None] = injected) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: patch(target, how)


FAILURES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "execute": broken("agentcache.blend.executor.BlendExecutor.execute_all"),
    "recompute": broken("agentcache.blend.forward.PagedForward._rows"),
    "match": broken("agentcache.match.Matcher.match"),
    "store": nullcontext,
    "garble": broken("agentcache.blend.executor.BlendExecutor._place", lambda *_: None),
}
"""`recompute` fails within the engine's own forward, before the model's layers.
`garble`: what is reused is not written, so blended answers are wrong, and the self-test is asked.
`store` breaks nothing here: its folder cannot be opened."""


def happened(llm: Any, what: str) -> dict[str, Any]:
    """The answers of an engine that breaks after its first requests."""
    from vllm import SamplingParams

    from agentcache.plugin import process

    code = llm.get_tokenizer().encode("def double(number):\n    return number + number\n\n\n" * 20)

    def ask(prompt: list[int], **wish: Any) -> tuple[list[int], dict[str, Any]]:
        params = SamplingParams(
            max_tokens=8, temperature=0, extra_args={"kv_transfer_params": {"agentcache": wish}}
        )
        output = llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)[0]
        return list(output.outputs[0].token_ids), (output.kv_transfer_params or {}).get("agentcache", {})

    ask(code, store={"cuts": [0, len(code)]})
    prompt = [*range(500, 520), *code, 600, 601]
    exact, _ = ask(prompt, mode="exact")
    verdict: dict[str, Any] = {}
    with FAILURES[what]():
        if what == "garble":
            verdict = llm.collective_rpc("agentcache_selftest")[0]
        first, _ = ask(prompt, mode="fast")
        prompt[0] += 1
        exact_again, _ = ask(prompt, mode="exact")
        second, counters = ask(prompt, mode="fast")
    assert process.WORKER is not None
    status = process.WORKER.status()
    return {
        "first": first == exact,
        "second": second == exact_again,
        "fallback": counters["fallback"],
        "fallbacks": status["fallbacks"],
        "blending": status["blending"],
        "verdict": verdict,
    }


def report(model: str, store_dir: Path, what: str) -> dict[str, Any]:
    from vllm import LLM
    from vllm.config import KVTransferConfig
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

    from agentcache.engine import transfer_config
    from agentcache.settings import EngineSettings

    if what == "store":
        store_dir.write_text("a file where the store's folder should be")
    llm = LLM(
        model=model,
        dtype="float32",
        enforce_eager=True,
        max_model_len=2048,
        kv_transfer_config=KVTransferConfig(**transfer_config(EngineSettings(store_dir=str(store_dir)))),
    )
    try:
        return happened(llm, what)
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()
        cleanup_dist_env_and_memory()


def main(model: str, folder: str) -> None:
    start_cheaply()
    for what in FAILURES:
        try:
            told = report(model, Path(folder) / what, what)
        except Exception as error:
            told = {"error": "".join(traceback.format_exception(error))}
        print(json.dumps({"name": what, **told}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
