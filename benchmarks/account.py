"""What keeping the books costs the scheduler, a request: finding what broke its prefix, and its record.

    python benchmarks/account.py            # seconds
    python benchmarks/account.py --json     # one JSON object as the last line

Real vLLM requests of 10,000 tokens with pages of 16 and of 128, behind 200 earlier ones of a conversation whose head
changes at random places. No engine runs. Measured is the thread's processor time, which others on the machine disturb
less than the clock.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import sys
import time
from typing import Any

import numpy as np
from machine import machine

TOKENS = 10_000
EARLIER = 200
MEASURED = 200


def run(page_size: int, seed: int = 0) -> dict[str, Any]:
    """Milliseconds a request."""
    from vllm import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    from agentcache.plan import Plan, Span
    from agentcache.plugin.account import Account
    from agentcache.plugin.messages import RequestRecord
    from agentcache.plugin.request import read_wish
    from agentcache.settings import EngineSettings

    init_none_hash(sha256)
    hasher = get_request_block_hasher(page_size, sha256)
    rng = random.Random(seed)
    base = [rng.randrange(50_000) for _ in range(TOKENS)]
    wish = read_wish(None, None, EngineSettings())
    account = Account()
    spans = tuple(Span(at, 180, f"{at:064x}", 0, 0, False, False) for at in range(200, 9_800, 200))
    plan = Plan(
        0, 9_900, spans, np.array([at + i for at in range(200, 9_800, 200) for i in range(16)], np.int64)
    )
    begin_ms, end_ms, take_ms = [], [], []
    for number in range(EARLIER + MEASURED):
        prompt = list(base)
        prompt[rng.randrange(TOKENS)] = -1 - number
        params = SamplingParams(max_tokens=1)
        request = Request(
            request_id=f"r{number}",
            prompt_token_ids=prompt,
            sampling_params=params,
            pooling_params=None,
            arrival_time=time.time(),
            block_hasher=hasher,
        )
        record = RequestRecord(
            request.request_id, "fast", TOKENS, 0, 8_000, 768, 1_232, len(spans), "", 0.0, 0.0, time.time()
        )
        tokens = np.array(prompt, np.int32)  # the matcher has made it anyway
        began = time.thread_time()
        account.admitted(request, wish, tokens)
        admitted = time.thread_time()
        request.append_output_token_ids(7)
        account.step()
        account.finished(record, plan, None)
        finished = time.thread_time()
        account.take()
        taken = time.thread_time()
        if number >= EARLIER:
            begin_ms.append(1e3 * (admitted - began))
            end_ms.append(1e3 * (finished - admitted))
            take_ms.append(1e3 * (taken - finished))
    whole = [sum(parts) for parts in zip(begin_ms, end_ms, take_ms, strict=True)]
    return {
        "page_size": page_size,
        "admitted_ms": statistics.median(begin_ms),
        "finished_ms": statistics.median(end_ms),
        "take_ms": statistics.median(take_ms),
        "whole_ms": statistics.median(whole),
        "whole_p95_ms": sorted(whole)[int(0.95 * len(whole))],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    arguments = parser.parse_args()
    results = [run(page_size) for page_size in (16, 128)]
    for one in results:
        print(
            f"pages of {one['page_size']:3}: {one['whole_ms']:.2f} ms a request of {TOKENS:,} tokens "
            f"(95 % below {one['whole_p95_ms']:.2f}): {one['admitted_ms']:.2f} at its admission, "
            f"{one['finished_ms']:.2f} at its end, {one['take_ms']:.2f} to hand it over"
        )
    if arguments.json:
        versions = {"python": platform.python_version(), "numpy": np.__version__}
        print(
            json.dumps(
                {"benchmark": "account", "machine": machine(), "versions": versions, "results": results}
            )
        )


if __name__ == "__main__":
    sys.exit(main())
