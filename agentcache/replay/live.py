"""A trace sent to a running server: every request `exact` and `fast`, which comes first alternates, and `again`.

`exact` requests share vLLM's prefix cache among themselves and never see a blended page: they are what vLLM with
prefix caching does. `fast` ones are agentcache's. `again` is the exact one once more, at once: all its pages are hit,
so it shows what is left of a request's time when nothing but its last page has to be computed. What the fast ones
leave behind is learned by the server's own worker (`agentcache.learn`). It is waited for between requests, as idle
time would do, and not timed; answers are cut short here, so the trace's own are handed in as if they had been
generated.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentcache.demo import Answer, ask
from agentcache.engine_client import EngineClient
from agentcache.errors import UsageError
from agentcache.quality import top_kl
from agentcache.replay.chat import chat_of
from agentcache.replay.prompt import Prompt, Prompter
from agentcache.replay.trace import Request

_WARM_S, _LEARN_S = 1800.0, 120.0
_ROOM_TOKENS = 16
"""Left for the answer in the server's context."""


@dataclass(frozen=True, slots=True)
class Timed:
    """One request in one mode. Counters are the engine's own, in tokens; whole_s: until the answer's end

    reused_tokens: recomputed ones included, as in the off-line report
    """

    ttft_s: float
    whole_s: float
    prompt_tokens: int
    prefix_hit_tokens: int
    reused_tokens: int
    recomputed_tokens: int
    first: str
    logprobs: dict[str, float]


@dataclass(frozen=True, slots=True)
class Pair:
    """The same request in both modes, and `exact` once more."""

    number: int
    fast: Timed
    exact: Timed
    again: Timed


@dataclass(slots=True)
class LiveRun:
    """interrupted: by Ctrl-C, before the trace was over
    skipped: requests that do not fit the server's context; mismatched: those it tokenised otherwise than we
    learned_tokens: computed meanwhile for what the server learned; unsettled: requests after which that took too long
    """

    model: str
    pairs: list[Pair]
    skipped: int = 0
    mismatched: int = 0
    learned_tokens: int = 0
    unsettled: int = 0
    interrupted: bool = False


def run_live(
    client: EngineClient,
    requests: Sequence[Request],
    folder: Path,
    *,
    most: int | None = None,
    on_pair: Callable[[Pair], None] = lambda pair: None,
) -> LiveRun:
    """Send the requests that fit the server's context, `most` at most. Raises EngineError and UsageError.

    Ctrl-C ends it with what has been measured; KeyboardInterrupt if that is nothing.
    """
    served = client.get("/v1/models")["data"][0]
    limit = int(served.get("max_model_len") or 1 << 30) - _ROOM_TOKENS
    run = LiveRun(served["id"], [])
    prompter = Prompter(folder)
    client.warmed_all(_WARM_S)
    learned_before = _learned(client)["tokens_computed"]
    try:
        _measure(client, prompter, requests, limit, most, run, on_pair)
    except KeyboardInterrupt:
        if not run.pairs:
            raise
        run.interrupted = True
    run.learned_tokens = _learned(client)["tokens_computed"] - learned_before
    if not run.pairs:
        raise UsageError(
            "no request of the trace fits the server's context; start it with a larger --max-model-len"
        )
    return run


def _measure(
    client: EngineClient,
    prompter: Prompter,
    requests: Sequence[Request],
    limit: int,
    most: int | None,
    run: LiveRun,
    on_pair: Callable[[Pair], None],
) -> None:
    """Send requests of at most `limit` tokens and add what is measured to `run`, pair by pair."""
    for prompt in prompter.prompts([request for request in requests if request.api != "completions"]):
        if most is not None and len(run.pairs) == most:
            break
        if len(prompt) > limit:
            run.skipped += 1
            continue
        if not run.pairs:  # a first request compiles and allocates
            _send(client, run.model, prompt.request, "exact", discard=True)
        order = ("exact", "fast") if len(run.pairs) % 2 == 0 else ("fast", "exact")
        timed = {mode: _send(client, run.model, prompt.request, mode) for mode in order}
        again = _send(client, run.model, prompt.request, "exact")
        pair = Pair(prompt.request.number, timed["fast"], timed["exact"], again)
        run.pairs.append(pair)
        run.mismatched += pair.fast.prompt_tokens != len(prompt)
        on_pair(pair)
        run.unsettled += not _learn(client, prompter, prompt)


def summary(run: LiveRun) -> dict[str, Any]:
    """The measured figures. Ratios are exact over fast: above 1, fast is faster."""
    pairs = run.pairs
    ratios = [pair.exact.ttft_s / pair.fast.ttft_s for pair in pairs]
    fast = _mode([pair.fast for pair in pairs])
    exact = _mode([pair.exact for pair in pairs])
    return {
        "model": run.model,
        "requests": len(pairs),
        "skipped_too_long": run.skipped,
        "tokenised_otherwise": run.mismatched,
        "prompt_tokens": sum(pair.fast.prompt_tokens for pair in pairs),
        "learned_tokens": run.learned_tokens,
        "unsettled": run.unsettled,
        "interrupted": run.interrupted,
        "fast": fast,
        "exact": exact,
        "again": _mode([pair.again for pair in pairs]),
        "ttft_ratio_again_median": statistics.median(pair.exact.ttft_s / pair.again.ttft_s for pair in pairs),
        "ttft_ratio_median": statistics.median(ratios),
        "ttft_ratio_quartiles": _quartiles(ratios),
        "ttft_medians_ratio": exact["ttft_s"] / fast["ttft_s"],
        "first_token_agreement": sum(p.fast.first == p.exact.first for p in pairs) / len(pairs),
        "mean_kl": statistics.fmean(top_kl(p.exact.logprobs, p.fast.logprobs) for p in pairs),
    }


def _mode(timed: Sequence[Timed]) -> dict[str, Any]:
    prompt = sum(one.prompt_tokens for one in timed)
    ttfts = [one.ttft_s for one in timed]
    return {
        "ttft_s": statistics.median(ttfts),
        "ttft_quartiles_s": _quartiles(ttfts),
        "prompt_tokens_per_s": prompt / sum(one.whole_s for one in timed),
        "prefix_hit_share": sum(one.prefix_hit_tokens for one in timed) / prompt,
        "reused_share": sum(one.reused_tokens for one in timed) / prompt,
        "recomputed_share": sum(one.recomputed_tokens for one in timed) / prompt,
    }


def _quartiles(values: Sequence[float]) -> list[float]:
    if len(values) < 2:
        return [values[0], values[0]]
    low, _, high = statistics.quantiles(values, n=4)
    return [low, high]


def _send(client: EngineClient, model: str, request: Request, mode: str, discard: bool = False) -> Timed:
    chat = chat_of(request)
    options: dict[str, Any] = {"kv_transfer_params": {"agentcache": {"mode": mode}}}
    if chat.tools:
        # shown to the model, but no parser is needed on the server
        options |= {"tools": chat.tools, "tool_choice": "none"}
    if discard:
        options["cache_salt"] = f"discarded-{time.time_ns()}"
    before = client.status()["totals"]["requests"]
    began = time.perf_counter()
    answer: Answer = ask(client, model, chat.messages, **options)
    whole_s = time.perf_counter() - began
    record = client.record_after(before)
    return Timed(
        ttft_s=answer.ttft_s,
        whole_s=whole_s,
        prompt_tokens=record["prompt_tokens"],
        prefix_hit_tokens=record["prefix_hit_tokens"],
        reused_tokens=record["reused_tokens"] + record["recomputed_tokens"],
        recomputed_tokens=record["recomputed_tokens"],
        first=answer.first,
        logprobs=answer.logprobs,
    )


def _learned(client: EngineClient) -> dict[str, Any]:
    learned: dict[str, Any] = client.status()["learned"]
    return learned


def _learn(client: EngineClient, prompter: Prompter, prompt: Prompt) -> bool:
    """Hand the recorded answer in, and wait until what the request left behind is learned; False if that takes long."""
    if _learned(client)["state"] == "off":
        return True
    if prompt.answer:
        client.expect([prompter.encode(prompt.answer).tolist()])
    return client.learned_all(_LEARN_S)
