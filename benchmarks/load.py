"""Many agents at once, some of them rude: does everybody get a right answer, and is nothing left behind?

    python benchmarks/load.py [--model MODEL] [--agents 64] [--seconds 60] [--json]

Agents send prompts of known code in new orders, hang up in the middle, read slowly, send what is no request, and
prompts that do not fit. Counted: requests without an answer (none may be), answers with the wrong status, answers
whose logprobs differ from those of the same prompt asked alone before (`wrong`; float32, 20 logprobs of the first
token), the share of pages in use before and after, and the memory of the server's processes in the middle and at the
end.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import json.decoder
import math
import random
import shlex
import sys
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

TOLERANCE = 0.05
"""Of a logprob: a batch adds in another order than a request alone."""
_ANSWER_S = 180.0
_GOOD, _REFUSED = {200}, {400, 413, 422}


@dataclass(frozen=True, slots=True)
class Sample:
    """A prompt whose answer is known. first: logprobs at the first position, by token"""

    prompt: list[int]
    mode: str
    first: dict[str, float]


@dataclass(slots=True)
class Report:
    """What happened. asked: requests by kind; worst: the largest difference of a checked logprob"""

    asked: Counter[str] = field(default_factory=Counter)
    unanswered: list[str] = field(default_factory=list)
    bad_status: list[str] = field(default_factory=list)
    checked: int = 0
    wrong: int = 0
    worst: float = 0.0


class Load:
    """url, model: of a running server; pieces: token ids of known code; longest: tokens that fit its context"""

    def __init__(
        self, url: str, model: str, pieces: Sequence[list[int]], longest: int, seed: int = 0
    ) -> None:
        self.report = Report()
        self._url, self._model, self._pieces, self._longest = url, model, list(pieces), longest
        self._seed = seed
        self._samples: list[Sample] = []
        self._end = 0.0

    def run(self, agents: int, seconds: float) -> Report:
        """Ask the samples alone, then everybody for `seconds`; returns when the last answer is there."""
        return asyncio.run(self._run(agents, seconds))

    async def _run(self, agents: int, seconds: float) -> Report:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=self._url, timeout=_ANSWER_S, limits=limits) as http:
            rng = random.Random(self._seed)
            for number in range(4):
                prompt, mode = self._prompt(rng), ("fast", "exact")[number % 2]
                for _ in range(2):  # the second time its pages are a prefix hit, as they will be from now on
                    first = await self._first(http, prompt, mode)
                self._samples.append(Sample(prompt, mode, first))
            self._end = time.monotonic() + seconds
            await asyncio.gather(
                *(self._agent(http, random.Random(f"{self._seed} {n}")) for n in range(agents))
            )
        return self.report

    async def _agent(self, http: httpx.AsyncClient, rng: random.Random) -> None:
        kinds: dict[str, tuple[int, Callable[[httpx.AsyncClient, random.Random], Awaitable[None]]]] = {
            "ask": (50, self._ask),
            "check": (15, self._check),
            "hang up": (15, self._hang_up),
            "read slowly": (8, self._read_slowly),
            "malformed": (6, self._malformed),
            "too long": (6, self._too_long),
        }
        names = list(kinds)
        while time.monotonic() < self._end:
            name = rng.choices(names, [kinds[each][0] for each in names])[0]
            self.report.asked[name] += 1
            try:
                await kinds[name][1](http, rng)
            except httpx.HTTPError as error:
                self.report.unanswered.append(f"{name}: {error or type(error).__name__}")

    # what an agent does

    async def _ask(self, http: httpx.AsyncClient, rng: random.Random) -> None:
        body = self._body(self._prompt(rng), "fast", max_tokens=rng.randint(1, 8))
        self._expect(await http.post("/v1/completions", json=body), _GOOD)

    async def _check(self, http: httpx.AsyncClient, rng: random.Random) -> None:
        sample = rng.choice(self._samples)
        found = await self._first(http, sample.prompt, sample.mode)
        common = found.keys() & sample.first.keys()
        difference = max((abs(found[token] - sample.first[token]) for token in common), default=math.inf)
        self.report.checked += 1
        self.report.worst = max(self.report.worst, difference)
        self.report.wrong += difference > TOLERANCE or len(common) < 0.7 * len(found)

    async def _hang_up(self, http: httpx.AsyncClient, rng: random.Random) -> None:
        body = self._body(self._prompt(rng), "fast", max_tokens=64, stream=True)
        patience_s = rng.uniform(0.0, 1.0)
        try:
            async with (
                asyncio.timeout(patience_s),
                http.stream("POST", "/v1/completions", json=body) as answer,
            ):
                async for _ in answer.aiter_raw():
                    pass
        except TimeoutError:
            return

    async def _read_slowly(self, http: httpx.AsyncClient, rng: random.Random) -> None:
        body = self._body(self._prompt(rng), "fast", max_tokens=16, stream=True)
        last = ""
        async with http.stream("POST", "/v1/completions", json=body) as answer:
            self._expect(answer, _GOOD)
            async for line in answer.aiter_lines():
                last = line or last
                await asyncio.sleep(rng.uniform(0.0, 0.1))
        if last != "data: [DONE]":
            self.report.unanswered.append(f"read slowly: the stream ended with {last[:80]!r}")

    async def _malformed(self, http: httpx.AsyncClient, rng: random.Random) -> None:
        content = rng.choice(
            [
                b"",
                b"{",
                b"[]",
                b"\xff\xfe",
                b'{"model": 1}',
                b'{"prompt": [99999999]}',
                b'{"prompt": {"a": 1}}',
            ]
        )
        path = rng.choice(["/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses"])
        answer = await http.post(path, content=content, headers={"Content-Type": "application/json"})
        self._expect(answer, _REFUSED)

    async def _too_long(self, http: httpx.AsyncClient, rng: random.Random) -> None:
        prompt = [rng.choice(rng.choice(self._pieces)) for _ in range(self._longest + rng.randint(1, 2000))]
        self._expect(await http.post("/v1/completions", json=self._body(prompt, "fast")), _REFUSED)

    # how

    def _prompt(self, rng: random.Random) -> list[int]:
        pieces = rng.sample(self._pieces, k=min(2, len(self._pieces)))
        opening = [rng.choice(pieces[0]) for _ in range(rng.randint(1, 24))]
        return opening + [token for piece in pieces for token in piece] + pieces[0][:5]

    def _body(self, prompt: list[int], mode: str, **options: Any) -> dict[str, Any]:
        wish = {"agentcache": {"mode": mode}}
        base = {"model": self._model, "prompt": prompt, "temperature": 0.0, "max_tokens": 1}
        return base | {"kv_transfer_params": wish} | options

    async def _first(self, http: httpx.AsyncClient, prompt: list[int], mode: str) -> dict[str, float]:
        answer = await http.post("/v1/completions", json=self._body(prompt, mode, logprobs=20))
        if not self._expect(answer, _GOOD):
            return {}
        first: dict[str, float] = answer.json()["choices"][0]["logprobs"]["top_logprobs"][0]
        return first

    def _expect(self, answer: httpx.Response, statuses: set[int]) -> bool:
        if answer.status_code in statuses:
            return True
        self.report.bad_status.append(f"{answer.status_code} to {answer.request.url.path}")
        return False


def memory_mib(pid: int) -> float:
    """Resident memory of a process and all below it, shared pages counted once a process."""
    total = 0.0
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            if (
                int(path.name) == pid or int(fields[2]) == pid
            ):  # its group: the engine is a session of its own
                total += int((path / "statm").read_text().split()[1]) * 4096 / 2**20
        except OSError:
            continue
    return total


def pages_used(metrics: str) -> float:
    """Share of vLLM's pages that requests hold."""
    for line in metrics.splitlines():
        if line.startswith("vllm:kv_cache_usage_perc"):
            return float(line.rsplit(" ", 1)[1])
    raise ValueError("vLLM reports no page usage")


def main() -> None:
    from machine import machine
    from tokenizers import Tokenizer

    from agentcache.engine import Engine, EngineOptions
    from agentcache.models import resolve
    from agentcache.settings import EngineSettings

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--agents", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    folder = resolve(options.model)
    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
    modules: tuple[Any, ...] = (textwrap, shlex, json.decoder)
    pieces = [tokenizer.encode(inspect.getsource(module)).ids[:400] for module in modules]
    with tempfile.TemporaryDirectory() as scratch:
        engine_options = EngineOptions(
            folder,
            "measured",
            settings=EngineSettings(store_dir=scratch),
            extra=("--dtype", "float32", "--max-model-len", "2048", "--max-logprobs", "20"),
        )
        with Engine(engine_options) as engine:
            engine.wait_ready()
            with engine.client() as client:
                for piece in pieces:
                    client.precompute("measured", piece, [0, len(piece)])
                before = pages_used(client.metrics())
                half = options.seconds / 2
                first = Load(engine.url, "measured", pieces, 2048, seed=1).run(options.agents, half)
                middle = memory_mib(engine.pid)
                second = Load(engine.url, "measured", pieces, 2048, seed=2).run(options.agents, half)
                time.sleep(3.0)
                after, end = pages_used(client.metrics()), memory_mib(engine.pid)
                fallbacks = client.status()["fallbacks"]
    result = {
        "machine": machine(),
        "agents": options.agents,
        "seconds": options.seconds,
        "asked": dict(first.asked + second.asked),
        "unanswered": len(first.unanswered) + len(second.unanswered),
        "bad_status": len(first.bad_status) + len(second.bad_status),
        "checked": first.checked + second.checked,
        "wrong": first.wrong + second.wrong,
        "worst_logprob_difference": max(first.worst, second.worst),
        "pages_used_before": before,
        "pages_used_after": after,
        "memory_middle_mib": round(middle),
        "memory_end_mib": round(end),
        "fallbacks": fallbacks,
    }
    for report in (first, second):
        print(*report.unanswered[:5], *report.bad_status[:5], sep="\n", file=sys.stderr)
    for name, value in result.items():
        print(f"{name}: {value}")
    if options.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
