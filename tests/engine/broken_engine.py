"""Run by test_breaker.py: an engine whose blending, or matching, fails. Prints what happened as JSON.

python -m tests.engine.broken_engine MODEL_FOLDER STORE_DIR execute|match|store|garble

`garble`: what is reused is not written, so blended answers are wrong, and the self-test is asked.
`store` breaks nothing here: STORE_DIR is one that cannot be opened.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_KVCACHE_SPACE="1", VLLM_PLUGINS="agentcache")


def main(model: str, store_dir: str, what: str) -> None:
    from vllm import LLM, SamplingParams
    from vllm.config import KVTransferConfig

    from agentcache.blend.executor import BlendExecutor
    from agentcache.engine import transfer_config
    from agentcache.plugin import process
    from agentcache.settings import EngineSettings

    llm = LLM(
        model=model,
        dtype="float32",
        enforce_eager=True,
        max_model_len=2048,
        kv_transfer_config=KVTransferConfig(**transfer_config(EngineSettings(store_dir=store_dir))),
    )
    code = llm.get_tokenizer().encode("def double(number):\n    return number + number\n\n\n" * 20)

    def ask(prompt: list[int], **wish: Any) -> tuple[list[int], dict[str, Any]]:
        params = SamplingParams(
            max_tokens=8, temperature=0, extra_args={"kv_transfer_params": {"agentcache": wish}}
        )
        output = llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)[0]
        return list(output.outputs[0].token_ids), (output.kv_transfer_params or {}).get("agentcache", {})

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("injected")

    ask(code, store={"cuts": [0, len(code)]})
    prompt = [*range(500, 520), *code, 600, 601]
    exact, _ = ask(prompt, mode="exact")
    if what == "execute":
        BlendExecutor.execute_all = fail  # type: ignore[method-assign, assignment]
    elif what == "match":
        from agentcache.match import Matcher

        Matcher.match = fail  # type: ignore[method-assign, assignment]
    verdict: dict[str, Any] = {}
    if what == "garble":
        BlendExecutor._place = lambda *_: None  # type: ignore[method-assign, assignment]
        verdict = llm.collective_rpc("agentcache_selftest")[0]
    first, _ = ask(prompt, mode="fast")
    prompt[0] += 1
    exact_again, _ = ask(prompt, mode="exact")
    second, counters = ask(prompt, mode="fast")
    assert process.WORKER is not None
    status = process.WORKER.status()
    print(
        json.dumps(
            {
                "first": first == exact,
                "second": second == exact_again,
                "fallback": counters["fallback"],
                "fallbacks": status["fallbacks"],
                "blending": status["blending"],
                "verdict": verdict,
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
