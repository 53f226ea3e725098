"""One real vLLM server a session, float32 so that equal means equal, and the answers of a vLLM without the plug-in."""

from __future__ import annotations

import heapq
import inspect
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from agentcache.context import Streams
from agentcache.engine import Engine, EngineOptions
from agentcache.engine_client import EngineClient
from agentcache.entry import INDEX_DOMAIN, as_tokens, entries_of_stream, own_domain
from agentcache.indexer import Index
from agentcache.learn.attach import learn_from_traffic
from agentcache.settings import EngineSettings
from agentcache.warm.engine import RemoteEngine
from agentcache.warm.warmer import Warmer

SERVED = "smollm2-135m"
PAGE_SIZE = 128
RAM_BYTES = 48 << 20  # small on purpose: entries of 46 KB a token have to go to disk and come back
ENGINE_ARGUMENTS = (
    *("--dtype", "float32"),
    *("--max-model-len", "4096"),
    *("--max-logprobs", "-1"),
    *("--enforce-eager",),
    *("--seed", "0"),
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
)


@dataclass(frozen=True, slots=True)
class Answer:
    """tokens: generated text, greedy, in pieces; first: logprobs at the first position, by token."""

    tokens: list[str]
    first: dict[str, float]
    counters: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Server:
    """A server and what tests do with it. repo: the session's has it indexed, and references may lead into it."""

    client: EngineClient
    store_dir: Path
    encode: Callable[[str], list[int]]
    repo: Path = Path()

    def ask(
        self,
        prompt: list[int],
        *,
        salt: str | None = None,
        whole_vocabulary: bool = False,
        **wish: Any,
    ) -> Answer:
        """A completion of token ids with `kv_transfer_params.agentcache = wish`: 8 tokens with their top 20
        logprobs, or one token with the logprobs of the whole vocabulary."""
        body = completion_body(prompt, salt, whole_vocabulary)
        body["kv_transfer_params"] = {"agentcache": wish}
        answer = self.client.post("/v1/completions", body)
        return Answer(*generated(answer), answer["kv_transfer_params"]["agentcache"])

    def store(self, tokens: list[int], *cuts: int, salt: str | None = None) -> None:
        """Have entries computed, for everybody or for one salt, and wait until they are on disk.

        Asked again where the store had no room: a slow disk, and a RAM tier full of what is not written yet.
        """
        places = list(cuts) or [0, len(tokens)]
        domain = INDEX_DOMAIN if salt is None else own_domain(salt)
        infos = entries_of_stream(self.status()["fingerprint"], domain, as_tokens(tokens), places)
        body = {
            "model": SERVED,
            "prompt": tokens,
            "max_tokens": 1,
            "kv_transfer_params": {"agentcache": {"store": {"cuts": places}}},
        }
        deadline = time.monotonic() + 60.0
        while True:
            if salt is None:
                self.client.precompute(SERVED, tokens, places)
            else:
                self.client.post("/v1/completions", body | {"cache_salt": salt})
            self.flush()
            if not self.client.missing([info.id for info in infos]):
                return
            assert time.monotonic() < deadline, f"entries were not stored within a minute: {self.status()}"

    def flush(self) -> None:
        deadline = time.monotonic() + 60.0
        while self.status()["store"]["pending"]:
            assert time.monotonic() < deadline, "entries were not written within a minute"
            time.sleep(0.05)

    def status(self) -> dict[str, Any]:
        return self.client.status()

    def pages_used(self) -> float:
        """vLLM's own gauge of pages in use, 0 to 1."""
        for line in self.client.metrics().splitlines():
            if line.startswith("vllm:kv_cache_usage_perc"):
                return float(line.rsplit(" ", 1)[1])
        raise AssertionError("vLLM reports no page usage")

    def reason(self, name: str) -> int:
        return int(self.status()["fallbacks"].get(name, 0))


@contextmanager
def learning(server: Server, model_folder: str, budget_bytes: int = 1 << 30) -> Iterator[None]:
    """A worker that learns from the server's traffic, in a thread, from now on."""
    server.client.notes()  # what others' tests left
    engine = RemoteEngine(server.client, SERVED)
    streams = Streams(model_folder, 4095)
    ready = threading.Event()
    warmer: list[Warmer] = []

    def work() -> None:
        made = Warmer(engine, [], streams)
        warmer.append(made)
        learn_from_traffic(made, engine, server.client, [], streams, budget_bytes, print)
        ready.set()
        made.run()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert ready.wait(60)
    try:
        yield
    finally:
        warmer[0].stop()
        thread.join(60)


def completion_body(
    prompt: list[int], salt: str | None = None, whole_vocabulary: bool = False
) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": SERVED,
        "prompt": prompt,
        "max_tokens": 1 if whole_vocabulary else 8,
        "temperature": 0.0,
        "logprobs": -1 if whole_vocabulary else 20,
    }
    if salt is not None:
        body["cache_salt"] = salt
    return body


def generated(answer: dict[str, Any]) -> tuple[list[str], dict[str, float]]:
    logprobs = answer["choices"][0]["logprobs"]
    return logprobs["tokens"], logprobs["top_logprobs"][0]


def largest_difference(a: dict[str, float], b: dict[str, float]) -> float:
    """The largest difference of logprobs over the tokens that both list, which must be nearly all."""
    common = a.keys() & b.keys()
    if len(common) < 0.7 * len(a):
        return float("inf")
    return max(abs(a[token] - b[token]) for token in common)


@pytest.fixture(scope="session")
def encode(model_folder: str) -> Callable[[str], list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(model_folder)

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    return encode


@pytest.fixture(scope="session")
def texts(encode: Callable[[str], list[int]]) -> dict[str, list[int]]:
    """Token streams of real code, about 400 to 700 tokens each, and what stands around them in a prompt."""
    import argparse
    import inspect
    import json.decoder
    import shlex

    def source(module: Any, limit: int) -> list[int]:
        return encode(inspect.getsource(module))[:limit]

    return {
        "textwrap": source(textwrap, 700),
        "argparse": source(argparse, 600),
        "shlex": source(shlex, 500),
        "decoder": source(json.decoder, 400),
        "system": encode("<|im_start|>system\nYou are a coding assistant.<|im_end|>\n<|im_start|>user\n"),
        "question": encode("\nWhat is the last function for?<|im_end|>\n<|im_start|>assistant\n"),
    }


@pytest.fixture(scope="session")
def prompts(texts: dict[str, list[int]]) -> dict[str, list[int]]:
    """The prompts whose plain answers are known."""
    t = texts
    return {
        "shuffled": t["system"] + t["shlex"] + t["textwrap"] + t["argparse"] + t["question"],
        "in place": t["textwrap"] + t["question"],
        "short": t["system"][:10] + t["question"],
        "unknown": t["system"] + list(reversed(t["decoder"])) + t["question"],
    }


@pytest.fixture(scope="session")
def asked_plainly(model_folder: str, prompts: dict[str, list[int]]) -> Iterator[Future[dict[str, Answer]]]:
    """`plain`, while a vLLM without the plug-in starts, is asked and is stopped, beside the session's own."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(ask_plainly, model_folder, prompts)


def ask_plainly(model_folder: str, prompts: dict[str, list[int]]) -> dict[str, Answer]:
    options = EngineOptions(
        model=model_folder, served_name=SERVED, settings=None, extra=ENGINE_ARGUMENTS, kv_gib=1
    )
    with Engine(options) as engine:
        engine.wait_ready()
        with engine.client() as client:
            body = completion_body(prompts["shuffled"], whole_vocabulary=True)
            whole = Answer(*generated(client.post("/v1/completions", body)), {})
            return {"all logprobs": whole} | {
                name: Answer(*generated(client.post("/v1/completions", completion_body(ids))), {})
                for name, ids in prompts.items()
            }


@pytest.fixture(scope="session")
def plain(asked_plainly: Future[dict[str, Answer]]) -> dict[str, Answer]:
    """What a vLLM without the plug-in answers; under "all logprobs", those of the whole vocabulary for "shuffled"."""
    return asked_plainly.result()


@pytest.fixture(scope="session")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that is indexed, in a home of its own beside it."""
    repo = tmp_path_factory.mktemp("indexed") / "repo"
    repo.mkdir()
    (repo / "heaps.py").write_text(inspect.getsource(heapq))
    (repo / "shapes.py").write_text("def double(shape):\n    return 2 * shape.area()\n")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AGENTCACHE_HOME", str(repo.parent / "home"))
        with Index.open(repo) as index:
            index.update()
    return repo


@pytest.fixture(scope="session")
def server(
    model_folder: str,
    asked_plainly: Future[dict[str, Answer]],
    texts: dict[str, list[int]],
    encode: Callable[[str], list[int]],
    tmp_path_factory: pytest.TempPathFactory,
    indexed: Path,
) -> Iterator[Server]:
    """The session's server, with three of the files stored."""
    store_dir = tmp_path_factory.mktemp("store")
    options = EngineOptions(
        model=model_folder,
        served_name=SERVED,
        settings=EngineSettings(store_dir=str(store_dir), ram_bytes=RAM_BYTES, roots=(str(indexed),)),
        extra=ENGINE_ARGUMENTS,
        kv_gib=1,
        worker_key="of the tests",
    )
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AGENTCACHE_HOME", str(indexed.parent / "home"))
        engine = Engine(options)
    with engine:
        engine.wait_ready()
        asked_plainly.result()  # nothing runs beside the session's server once it is used
        with engine.client() as client:
            running = Server(client, store_dir, encode, indexed)
            for name in ("textwrap", "argparse", "shlex"):
                size = len(texts[name])
                running.store(texts[name], 0, size // 3, size // 2, size)
            yield running
