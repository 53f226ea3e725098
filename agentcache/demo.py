"""The main job, end to end, on real parts: index, serve, warm, then the same prompts `exact` and `fast`."""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from agentcache.context import Streams
from agentcache.engine_client import EngineClient
from agentcache.errors import EngineError, UsageError
from agentcache.indexer import Index
from agentcache.quality import top_kl, top_logprobs
from agentcache.warm import WarmItem

MIN_PROMPT_TOKENS, MAX_PROMPT_TOKENS = 2_000, 6_000
_MIN_PIECE_TOKENS, _MAX_PIECE_TOKENS = 200, 1_500
_PREFERRED_TOKENS = range(900, 1_300)
_OVERHEAD_TOKENS = 220  # system prompt, headings, fences, question, chat template
_SYSTEM = "You are a coding assistant. Answer from the code you are given."


@dataclass(frozen=True, slots=True)
class Piece:
    """A file or a method as an agent would show it. item: what to warm for it; tokens: of `text` by itself."""

    item: WarmItem
    title: str
    text: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Pair:
    """The same prompt answered twice. Counters are of the fast request, in tokens; times in seconds."""

    titles: tuple[str, ...]
    prompt_tokens: int
    prefix_hit_tokens: int
    reused_tokens: int
    recomputed_tokens: int
    ttft_exact_s: float
    ttft_fast_s: float
    same_first_token: bool
    kl: float

    @property
    def ratio(self) -> float:
        return self.ttft_exact_s / self.ttft_fast_s


def choose_pieces(
    index: Index, streams: Streams, rng: random.Random, budget_tokens: int = 14_000
) -> list[Piece]:
    """Files and methods of the repository, at most `budget_tokens` together. Raises UsageError if there are too few."""
    candidates: list[Piece] = []
    for record in index.files():
        data, blocks = index.snapshot(record.path)
        whole = [(WarmItem(record.path), record.path, data)] if len(data) <= 12_000 else []
        parts = [
            (
                WarmItem(record.path, block.id),
                f"{record.path}#{block.name}",
                data[block.start_byte : block.end_byte],
            )
            for block in blocks
            if block.kind in ("function", "method", "class")
        ]
        for item, title, raw in (*whole, *parts):
            text = raw.decode(errors="replace")
            tokens = streams.count(text)
            if _MIN_PIECE_TOKENS <= tokens <= _MAX_PIECE_TOKENS:
                candidates.append(Piece(item, title, text, tokens))
    rng.shuffle(candidates)
    candidates.sort(
        key=lambda piece: piece.tokens not in _PREFERRED_TOKENS
    )  # the others only where these are few
    # Methods of a chosen file would be reused from the file: prefer pieces of different files, then any.
    chosen: list[Piece] = []
    seen: set[str] = set()
    for allow_seen in (False, True):
        for piece in candidates:
            fresh = piece.item.path not in seen or allow_seen
            if (
                fresh
                and piece not in chosen
                and sum(p.tokens for p in chosen) + piece.tokens <= budget_tokens
            ):
                chosen.append(piece)
                seen.add(piece.item.path)
    if len(chosen) < 3 or sum(p.tokens for p in chosen) < MIN_PROMPT_TOKENS:
        raise UsageError("this repository has too little code for the demo; point it at a larger one")
    return chosen


def prompts(pieces: Sequence[Piece], count: int, rng: random.Random) -> Iterator[list[Piece]]:
    """`count` random selections of 3 to 6 pieces, in random order, each a prompt of 2,000 to 6,000 tokens.

    No two begin with the same piece while there are others, so that vLLM's own prefix cache has little to add.
    """
    firsts: list[Piece] = []
    for number in range(count):
        if not firsts:
            firsts = rng.sample(pieces, len(pieces))
        first = firsts.pop()
        others = [piece for piece in pieces if piece is not first]
        wanted = 3 + number % 4
        for size in (*range(wanted, 2, -1), *range(wanted + 1, 7)):
            picked = _selection(first, others, size, rng)
            if picked is not None:
                yield picked
                break
        else:
            raise UsageError("no selection of this repository's code makes a prompt of 2,000 to 6,000 tokens")


def _selection(first: Piece, others: Sequence[Piece], size: int, rng: random.Random) -> list[Piece] | None:
    """`first` and `size` - 1 others in random order that make a prompt of the right length, if they are found."""
    for _ in range(200 if len(others) >= size - 1 else 0):
        picked = [first, *rng.sample(others, size - 1)]
        if MIN_PROMPT_TOKENS <= sum(piece.tokens for piece in picked) + _OVERHEAD_TOKENS <= MAX_PROMPT_TOKENS:
            return picked
    return None


def messages_of(picked: Sequence[Piece], question: str) -> list[dict[str, str]]:
    """A chat as coding agents write it: every piece under its name in a fence, the task last."""
    shown = "".join(f"{piece.title}\n```\n{piece.text}```\n\n" for piece in picked)
    return [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": f"{shown}{question}"}]


@dataclass(frozen=True, slots=True)
class Answer:
    """ttft_s: seconds from sending to the first token; logprobs: top 20 of the first token; text: all of it."""

    ttft_s: float
    first: str
    logprobs: dict[str, float]
    text: str


def ask(client: EngineClient, model: str, messages: list[dict[str, str]], **more: Any) -> Answer:
    """One streamed chat request, greedy. Raises EngineError."""
    body = {
        "model": model,
        "messages": messages,
        "stream": True,
        "temperature": 0.0,
        "max_tokens": 8,
        "logprobs": True,
        "top_logprobs": 20,
        **more,
    }
    began = time.perf_counter()
    ttft = 0.0
    first: list[Any] = []
    text = ""
    with client.stream("/v1/chat/completions", body) as response:
        if response.status_code != 200:
            response.read()
            raise EngineError(f"the engine answered {response.status_code}: {response.text[:300]}")
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            if "error" in chunk:
                raise EngineError(f"the engine broke off: {chunk['error']}")
            for choice in chunk.get("choices", []):
                content = (choice.get("logprobs") or {}).get("content")
                if content and not first:
                    ttft, first = time.perf_counter() - began, content
                text += choice["delta"].get("content") or ""
    if not first:
        raise EngineError("the engine generated nothing")
    return Answer(ttft, first[0]["token"], top_logprobs(first), text)


def run_pair(client: EngineClient, model: str, picked: Sequence[Piece], number: int, seed: int) -> Pair:
    """Ask the same thing `exact` with a cold prefix cache, and `fast`; which comes first alternates."""
    messages = messages_of(picked, "In one sentence: what is the first of these for?")
    exact_options = {
        "kv_transfer_params": {"agentcache": {"mode": "exact"}},
        "cache_salt": f"demo-{seed}-{number}-{time.time_ns()}",  # no page of an earlier request can be hit
    }
    fast_options: dict[str, Any] = {"kv_transfer_params": {"agentcache": {"mode": "fast"}}}
    if number < 0:
        # What is thrown away leaves no page to be hit.
        fast_options["cache_salt"] = exact_options["cache_salt"]
    if number % 2:
        fast, record = _counted(client, model, messages, fast_options)
        exact, _ = _counted(client, model, messages, exact_options)
    else:
        exact, _ = _counted(client, model, messages, exact_options)
        fast, record = _counted(client, model, messages, fast_options)
    return Pair(
        titles=tuple(piece.title for piece in picked),
        prompt_tokens=record["prompt_tokens"],
        prefix_hit_tokens=record["prefix_hit_tokens"],
        reused_tokens=record["reused_tokens"],
        recomputed_tokens=record["recomputed_tokens"],
        ttft_exact_s=exact.ttft_s,
        ttft_fast_s=fast.ttft_s,
        same_first_token=exact.first == fast.first,
        kl=top_kl(exact.logprobs, fast.logprobs),
    )


def _counted(
    client: EngineClient, model: str, messages: list[dict[str, str]], options: dict[str, Any]
) -> tuple[Answer, dict[str, Any]]:
    """The answer and the engine's own record of the request."""
    before = client.status()["totals"]["requests"]
    answer = ask(client, model, messages, **options)
    return answer, client.record_after(before)


def run(
    client: EngineClient,
    model: str,
    pieces: Sequence[Piece],
    count: int,
    seed: int,
    on_pair: Callable[[Pair], None],
) -> list[Pair]:
    """All pairs, after one that is thrown away (the first request of a server compiles and allocates)."""
    rng = random.Random(seed)
    selections = list(prompts(pieces, count, rng))
    small = sorted(pieces, key=lambda piece: piece.tokens)[:2]
    run_pair(client, model, small, -1, seed)
    pairs: list[Pair] = []
    for number, picked in enumerate(selections):
        pair = run_pair(client, model, picked, number, seed)
        pairs.append(pair)
        on_pair(pair)
    return pairs


def summary(pairs: Sequence[Pair], model: str) -> dict[str, Any]:
    """The demo's figures; shares are of all prompt tokens together."""
    prompt = sum(pair.prompt_tokens for pair in pairs)
    return {
        "model": model,
        "requests": len(pairs),
        "prompt_tokens": prompt,
        "reused_share": sum(pair.reused_tokens for pair in pairs) / prompt,
        "prefix_hit_share": sum(pair.prefix_hit_tokens for pair in pairs) / prompt,
        "recomputed_share": sum(pair.recomputed_tokens for pair in pairs) / prompt,
        "ttft_exact_s": statistics.median(pair.ttft_exact_s for pair in pairs),
        "ttft_fast_s": statistics.median(pair.ttft_fast_s for pair in pairs),
        "ttft_ratio": statistics.median(pair.ratio for pair in pairs),
        "first_token_agreement": sum(pair.same_first_token for pair in pairs) / len(pairs),
        "mean_kl": statistics.fmean(pair.kl for pair in pairs),
    }
