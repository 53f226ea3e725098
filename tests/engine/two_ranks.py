"""Run by test_two_ranks.py: two tensor-parallel workers on this machine's processor, started twice on one store.

python -m tests.engine.two_ranks FOLDER STORE_DIR first|again

first: makes entries, blends with them; again: what a second start finds; then one rank loses an entry
Prints what happened as JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from agentcache.entry import INDEX_DOMAIN, as_tokens, entries_of_stream
from tests.engine.situations import IN_PLACE, PROMPT, A, B, C, far
from tests.parity.measure import start_cheaply  # sets vLLM's environment: before vllm and torch
from tests.parity.tiny import MAX_POSITIONS, VOCABULARY

CUTS = [0, 300, 550, 750]


class Ranks:
    """An engine in this process, its workers in others."""

    def __init__(self, folder: str, store_dir: str, **engine: Any) -> None:
        from vllm import LLM
        from vllm.config import KVTransferConfig

        from agentcache.engine import transfer_config
        from agentcache.settings import EngineSettings

        settings = EngineSettings(store_dir=store_dir, ram_bytes=64 << 20)
        self.llm = LLM(
            model=folder,
            dtype="float32",
            enforce_eager=True,
            max_model_len=MAX_POSITIONS,
            max_num_batched_tokens=512,
            max_logprobs=-1,
            skip_tokenizer_init=True,
            kv_transfer_config=KVTransferConfig(**transfer_config(settings)),
            **engine,
        )
        self._asked = 0

    def ask(self, prompt: list[int], **wish: Any) -> dict[str, Any]:
        from vllm import SamplingParams

        self._asked += 1
        params = SamplingParams(
            max_tokens=2,
            ignore_eos=True,
            temperature=0,
            logprobs=-1,
            detokenize=False,
            extra_args={"kv_transfer_params": {"agentcache": wish}},
        )
        request: Any = {"prompt_token_ids": prompt, "cache_salt": str(self._asked)}
        output = self.llm.generate([request], params, use_tqdm=False)[0]
        first = output.outputs[0].logprobs[0]  # type: ignore[index]
        logprobs = torch.tensor([first[token].logprob for token in range(VOCABULARY)])
        return {"first": logprobs, "counters": (output.kv_transfer_params or {}).get("agentcache", {})}

    def compare(self) -> dict[str, Any]:
        exact, own = self.ask(PROMPT, mode="exact"), self.ask(IN_PLACE, mode="exact")
        every = self.ask(PROMPT, strategy="all", min_saved_tokens=0)
        none, in_place = self.ask(PROMPT, strategy="none"), self.ask(IN_PLACE)
        scored = self.ask(PROMPT, strategy="deviation", budget=0.2, min_saved_tokens=0)
        return {
            "all": far(every, exact),
            "in place": far(in_place, own),
            "none": far(none, exact),
            "all, tokens": every["counters"]["recomputed_tokens"],
            "in place, tokens": in_place["counters"]["reused_tokens"],
            "scored, tokens": scored["counters"]["recomputed_tokens"],
        }

    def statuses(self) -> list[dict[str, Any]]:
        return [dict(one) for one in self.llm.collective_rpc("agentcache_status")]


def lose(worker: Any, entry: str) -> None:
    """Run by every worker: the second rank's store loses an entry."""
    from vllm.distributed import get_tensor_model_parallel_rank

    from agentcache.plugin import process

    if get_tensor_model_parallel_rank() == 1:
        assert process.WORKER is not None
        process.WORKER.drop([entry])


def main(folder: str, store_dir: str, what: str) -> None:
    start_cheaply()
    ranks = Ranks(folder, store_dir, tensor_parallel_size=2)
    if what == "first":
        ranks.ask(A + B + C, store={"cuts": CUTS, "domain": "index"})
    figures = ranks.compare()
    statuses = ranks.statuses()
    figures["status"] = [
        {name: status[name] for name in ("fingerprint", "unsupported", "fallbacks")} for status in statuses
    ]
    if what == "again":
        infos = entries_of_stream(statuses[0]["fingerprint"], INDEX_DOMAIN, as_tokens(A + B + C), CUTS)
        lost, own = infos[1].id, ranks.ask(IN_PLACE, mode="exact")
        ranks.llm.collective_rpc(lose, args=(lost,))
        holed = ranks.ask(IN_PLACE)  # planned before the scheduler half hears of the loss
        figures["one rank lost an entry"] = far(holed, own)
        figures["holed"] = holed["counters"]
        figures["missing"] = [
            len(one) for one in ranks.llm.collective_rpc("agentcache_missing", args=([lost],))
        ]
    print(json.dumps(figures))
    ranks.llm.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
