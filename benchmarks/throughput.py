"""Eight coding agents at once: requests a second with the plug-in, and of the same server without it.

    python benchmarks/throughput.py [--model MODEL] [--agents N] [--turns N] [--repeats N] [--at-most S] [--json]

Each agent reads files of installed packages in its own random order and asks about them, over several turns: a turn's
prompt is the conversation so far, the generated answer included, and further files with another question. All agents
run at once, each sends its next turn when the last is answered, so prefill and decoding mix as they come.

Two servers, one of which works at a time, in turn: `fast` with the plug-in and the files' K/V stored, `cached`
without the plug-in and with vLLM's prefix caching. `uncached` is the second server with a page namespace for every
request, so that prefix caching finds nothing (once: it takes long). Every run has other files, orders and questions,
the same ones for each, in a page namespace of its own. `ratio`: requests a second of `fast` over `cached` of the same
conversations, median of the runs. With `--at-most` there are fewer runs, and shorter prompts, where this machine would
take longer.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from code_prompts import Corpus, File
from tokenizers import Tokenizer

from agentcache.context import Streams
from agentcache.engine import Engine, EngineOptions
from agentcache.engine_client import EngineClient
from agentcache.models import resolve
from agentcache.settings import GIB, EngineSettings

SERVED = "measured"
HEAD = (
    "<|im_start|>system\nYou are a coding assistant. Answer from the code you are given.<|im_end|>\n"
    "<|im_start|>user\n"
)
QUESTIONS = (
    "Which of these functions can raise an exception, and when?",
    "Write a test for the last function above.",
    "What does the first class of these files keep between two calls?",
    "Which names are exported, and which are private?",
    "Find a place where a resource may not be closed.",
    "Explain in two sentences how these files depend on each other.",
    "Rewrite the shortest function so that it has type annotations.",
    "Which function would you change to log every call?",
)


@dataclass(frozen=True, slots=True)
class Turn:
    """What an agent adds to its conversation: token ids of the files it has read and of its question."""

    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Size:
    """How much is asked: tokens of a conversation's first prompt, tokens that each further turn adds, and runs."""

    agents: int
    turns: int
    first_tokens: int
    turn_tokens: int
    repeats: int
    uncached_repeats: int

    def prefilled(self) -> float:
        """Tokens that all runs together prefill, by and large; `fast` prefills a twelfth of what `cached` does."""
        cached = self.first_tokens + (self.turns - 1) * self.turn_tokens
        uncached = sum(self.first_tokens + turn * self.turn_tokens for turn in range(self.turns))
        return self.agents * (self.repeats * cached * 13 / 12 + self.uncached_repeats * uncached)

    def within(self, tokens: float) -> Size:
        """This, or less of it, so that no more than `tokens` are prefilled; first prompts have 800 at least."""
        if self.prefilled() <= tokens:
            return self
        if self.repeats > 1:
            return replace(self, repeats=self.repeats - 1).within(tokens)
        share = max(tokens / self.prefilled(), 800 / self.first_tokens)
        if share >= 1.0:
            return self
        return replace(
            self, first_tokens=int(share * self.first_tokens), turn_tokens=int(share * self.turn_tokens)
        )


@dataclass(frozen=True, slots=True)
class Run:
    """All agents once through their conversations. tokens: of all prompts; first_s: seconds of each first turn"""

    seconds: float
    requests: int
    tokens: int
    answers_s: tuple[float, ...]
    counters: dict[str, int]


class Agents:
    """Makes conversations; the same seed makes the same."""

    def __init__(self, folder: str, num_files: int) -> None:
        self._tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
        self.streams = Streams(folder, 4096)
        files = Corpus(self._tokenizer, self.streams, 700).files
        self.files: list[File] = random.Random(1).sample(files, num_files)
        self._pieces = [self._encode(f"{file.path}\n```python\n{file.text()}```\n\n") for file in self.files]

    def conversations(self, size: Size, seed: int) -> list[list[Turn]]:
        rng = random.Random(seed)
        return [self._conversation(size, rng) for _ in range(size.agents)]

    def _conversation(self, size: Size, rng: random.Random) -> list[Turn]:
        order = rng.sample(range(len(self.files)), len(self.files))
        questions = rng.sample(QUESTIONS, size.turns)
        made: list[Turn] = []
        for number, question in enumerate(questions):
            head = HEAD if number == 0 else "<|im_end|>\n<|im_start|>user\nNow look at these as well.\n\n"
            ids = self._encode(head)
            budget = size.turn_tokens if number else size.first_tokens
            for which in list(order):
                if len(ids) + len(self._pieces[which]) <= budget:
                    ids += self._pieces[which]
                    order.remove(which)
            ids += self._encode(f"{question}<|im_end|>\n<|im_start|>assistant\n")
            made.append(Turn(tuple(ids)))
        return made

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def converse(
    client: EngineClient, turns: Sequence[Turn], salt: str, answer_tokens: int, hits: bool
) -> list[dict[str, Any]]:
    """One agent: its turns one after the other. hits: whether its prompts share their pages"""
    prompt: list[int] = []
    done = []
    for number, turn in enumerate(turns):
        prompt += turn.tokens
        body = {
            "model": SERVED,
            "prompt": prompt,
            "max_tokens": answer_tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "return_token_ids": True,
            "cache_salt": salt if hits else f"{salt}, turn {number}",
            "kv_transfer_params": {"agentcache": {}},
        }
        began = time.perf_counter()
        answer = client.post("/v1/completions", body)
        counters = (answer.get("kv_transfer_params") or {}).get("agentcache", {})
        done.append({"seconds": time.perf_counter() - began, "tokens": len(prompt), "counters": counters})
        prompt += answer["choices"][0]["token_ids"]
    return done


def run(
    client: EngineClient,
    conversations: Sequence[Sequence[Turn]],
    salt: str,
    answer_tokens: int,
    hits: bool = True,
) -> Run:
    """All agents at once; without `hits`, no request finds pages of another."""
    began = time.perf_counter()
    with ThreadPoolExecutor(len(conversations)) as pool:
        agents = [
            pool.submit(
                converse, client, turns, salt if hits else f"{salt}, agent {number}", answer_tokens, hits
            )
            for number, turns in enumerate(conversations)
        ]
        done = [one for agent in agents for one in agent.result()]
    seconds = time.perf_counter() - began
    names = ("prefix_hit_tokens", "reused_tokens", "recomputed_tokens", "computed_tokens")
    return Run(
        seconds,
        len(done),
        sum(one["tokens"] for one in done),
        tuple(one["seconds"] for one in done),
        {name: sum(one["counters"].get(name, 0) for one in done) for name in names},
    )


def summary(runs: Sequence[Run]) -> dict[str, Any]:
    rates = [one.requests / one.seconds for one in runs]
    answers = [seconds for one in runs for seconds in one.answers_s]
    return {
        "runs": len(runs),
        "requests_per_s": statistics.median(rates),
        "requests_per_s_spread": [min(rates), max(rates)],
        "answer_s_median": statistics.median(answers),
        "answer_s_worst": max(answers),
        "prompt_tokens": sum(one.tokens for one in runs) / len(runs),
        **{name: sum(one.counters[name] for one in runs) / len(runs) for name in runs[0].counters},
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--agents", type=int, default=8)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--files", type=int, default=20, help="that all agents draw from")
    parser.add_argument("--first-tokens", type=int, default=4200, help="of a conversation's first prompt")
    parser.add_argument("--turn-tokens", type=int, default=1200, help="that each further turn adds")
    parser.add_argument("--answer-tokens", type=int, default=24)
    parser.add_argument("--kv-gib", type=int, default=2)
    parser.add_argument("--uncached-repeats", type=int, default=1)
    parser.add_argument("--eager", action="store_true", help="start vLLM without compiling: sooner")
    parser.add_argument(
        "--at-most", type=float, default=math.inf, metavar="S", help="ask less, to be done in so many seconds"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    folder = resolve(options.model)
    agents = Agents(folder, options.files)
    size = Size(
        options.agents,
        options.turns,
        options.first_tokens,
        options.turn_tokens,
        options.repeats,
        options.uncached_repeats,
    )
    longest = options.first_tokens + options.turns * (options.turn_tokens + options.answer_tokens + 100)
    runs: dict[str, list[Run]] = {"fast": [], "cached": [], "uncached": []}
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory())
        store = EngineSettings(store_dir=str(Path(scratch) / "store"), ram_bytes=2 * GIB)
        eager = ("--enforce-eager",) if options.eager else ()
        extra = ("--max-model-len", str(longest), "--no-enable-log-requests", *eager)
        engines: dict[str, Engine] = {}
        for name, settings in (("fast", store), ("cached", None)):
            server = EngineOptions(folder, SERVED, kv_gib=options.kv_gib, settings=settings, extra=extra)
            engines[name] = stack.enter_context(Engine(server))
        clients: dict[str, EngineClient] = {}
        for name, engine in engines.items():
            engine.wait_ready()
            clients[name] = stack.enter_context(engine.client())
        for file in agents.files:
            for stream in agents.streams.of_file(file.data, file.blocks):
                clients["fast"].precompute(SERVED, stream.tokens.tolist(), list(stream.cuts))
        first = agents.conversations(replace(size, agents=2, turns=1, first_tokens=1600), seed=0)
        for client in clients.values():  # thrown away: compiles and allocates
            warm_up = run(client, first, "warm-up", options.answer_tokens)
        size = size.within(options.at_most * warm_up.tokens / warm_up.seconds)  # of `cached`
        for number in range(size.repeats):
            conversations = agents.conversations(size, seed=number + 1)
            order = ["fast", "cached"] if number % 2 else ["cached", "fast"]
            for name in [*order, *(["uncached"] if number < size.uncached_repeats else [])]:
                client = clients["cached" if name == "uncached" else name]
                salt, hits = f"run {number} {name}", name != "uncached"
                runs[name].append(run(client, conversations, salt, options.answer_tokens, hits))
                print(number, name, runs[name][-1], file=sys.stderr, flush=True)
    report(options, size, runs)
    return 0


def report(options: argparse.Namespace, size: Size, runs: dict[str, list[Run]]) -> None:
    ratios = [slow.seconds / fast.seconds for fast, slow in zip(runs["fast"], runs["cached"], strict=True)]
    without = [
        slow.seconds / fast.seconds for fast, slow in zip(runs["fast"], runs["uncached"], strict=False)
    ]
    result = {
        "model": options.model if not Path(options.model).exists() else Path(options.model).name,
        "agents": size.agents,
        "eager": options.eager,
        "turns": size.turns,
        "first_tokens": size.first_tokens,
        "turn_tokens": size.turn_tokens,
        "answer_tokens": options.answer_tokens,
        "ratio": statistics.median(ratios),
        "ratio_spread": [min(ratios), max(ratios)],
        "uncached_ratio": statistics.median(without) if without else None,
        **{name: summary(some) for name, some in runs.items() if some},
    }
    print(json.dumps(result, indent=1), file=sys.stderr)
    if options.json:
        print(json.dumps(result))


if __name__ == "__main__":
    sys.exit(main())
