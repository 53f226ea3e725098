"""The worker on a real server, which counts what it computes. One server for the module; the last test kills it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agentcache.context import Streams
from agentcache.engine import Engine, EngineOptions
from agentcache.engine_client import EngineClient
from agentcache.indexer import Index
from agentcache.settings import EngineSettings
from agentcache.warm.engine import RemoteEngine
from agentcache.warm.job import Urgency
from agentcache.warm.queue import WarmItem
from agentcache.warm.warmer import Warmer
from tests.warm.test_index_source import function

pytestmark = pytest.mark.engine
SERVED = "smollm2-135m"
MAX_TOKENS = 2048
KEY = "a key that tests know"


@pytest.fixture(scope="module")
def running(model_folder: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    options = EngineOptions(
        model_folder,
        SERVED,
        kv_gib=1,
        settings=EngineSettings(store_dir=str(tmp_path_factory.mktemp("store")), ram_bytes=256 << 20),
        extra=("--enforce-eager", "--max-model-len", str(MAX_TOKENS)),
        worker_key=KEY,
    )
    with Engine(options) as engine:
        engine.wait_ready()
        yield engine


@dataclass
class Scene:
    """A repository of its own, and workers for it."""

    root: Path
    index: Index
    client: EngineClient
    streams: Streams

    def worker(self, budget_bytes: int | None = None) -> Warmer:
        return Warmer(RemoteEngine(self.client), [self.index], self.streams, budget_bytes=budget_bytes)

    def file(self, name: str) -> str:
        """A file that is nobody else's: what another test stored is of no use for it."""
        parts = (function(f"{name}_{n}", f"print('{name}', {n})") for n in range(14))
        text = f'"""{name}"""\n\n\n' + "".join(parts)
        (self.root / f"{name}.py").write_text(text)
        self.index.update()
        return text

    def tokens(self, text: str) -> int:
        return self.streams.count(text)

    def entries(self, path: str) -> dict[str, int]:
        """Entries of a file as it is now, with their tokens."""
        fingerprint = self.client.status()["fingerprint"]
        from agentcache.entry import INDEX_DOMAIN, entries_of_stream

        streams = self.streams.of_file(*self.index.snapshot(path))
        infos = [i for s in streams for i in entries_of_stream(fingerprint, INDEX_DOMAIN, s.tokens, s.cuts)]
        return {info.id: info.num_tokens for info in infos}

    def ask(self, text: str, **more: Any) -> dict[str, Any]:
        body = {
            "model": SERVED,
            "prompt": f"Please look at this file.\n\n{text}\nWhat is it for?",
            "max_tokens": 1,
            "temperature": 0.0,
            "kv_transfer_params": {"agentcache": {"mode": "fast"}},
            **more,
        }
        counters: dict[str, Any] = self.client.post("/v1/completions", body)["kv_transfer_params"][
            "agentcache"
        ]
        return counters


@pytest.fixture
def scene(running: Engine, model_folder: str, tmp_path: Path) -> Iterator[Scene]:
    root = tmp_path / "repository"
    root.mkdir()
    with Index.open(root, tmp_path / "index.db") as index, running.client() as client:
        yield Scene(root, index, client, Streams(model_folder, MAX_TOKENS - 1))


def test_an_edit_costs_its_block_and_what_stands_behind_it_is_of_use_at_once(scene: Scene) -> None:
    text = scene.file("edit")
    worker = scene.worker()
    (source,) = worker.sources
    assert worker.run_once().tokens_computed >= scene.tokens(text)
    before = worker.progress.tokens_computed

    new = function("edit_4", "return first * second  # edited, at some length")
    edited = text.replace(function("edit_4", "print('edit', 4)"), new)
    (scene.root / "edit.py").write_text(edited)
    source.edited(scene.index.refresh(["edit.py"]))
    while source.urgency() == Urgency.EDIT:
        worker.service._turn()
    spent = worker.progress.tokens_computed - before
    assert 0 < spent <= scene.tokens(new) + 2
    assert source.last_edit is not None
    assert source.last_edit.tokens == spent
    counters = scene.ask(edited)
    assert counters["reused_tokens"] + counters["recomputed_tokens"] > 0.9 * counters["prompt_tokens"]

    worker.service.run_once()  # refreshed, and the block alone
    (scene.root / "edit.py").write_text(text)
    source.edited(scene.index.refresh(["edit.py"]))
    undone = worker.progress.tokens_computed
    worker.service.run_once()
    assert worker.progress.tokens_computed == undone, "an undo finds everything"


def test_what_was_stopped_goes_on_and_nothing_is_computed_twice(scene: Scene) -> None:
    text = scene.file("stop")
    first = scene.worker()
    first.service._max_step_tokens = 200
    first.service._on_progress = lambda progress: first.stop()
    first.sources[0].add([WarmItem("stop.py")], Urgency.IMPORTANT)
    done = first.service.run_once().tokens_computed
    assert 0 < done < scene.tokens(text)
    second = scene.worker()
    assert done + second.warm(scene.index, [WarmItem("stop.py")]).tokens_computed == scene.tokens(text)
    assert scene.worker().warm(scene.index, [WarmItem("stop.py")]).tokens_computed == 0


def test_a_budget_holds_and_something_urgent_takes_the_place_of_the_rest(scene: Scene) -> None:
    scene.file("small")
    scene.file("large")
    engine = RemoteEngine(scene.client)
    sizes = {path: sum(scene.entries(path).values()) for path in ("small.py", "large.py")}
    worker = scene.worker(budget_bytes=int(1.5 * engine.token_bytes * sizes["small.py"]))
    worker.sources[0].add([WarmItem("small.py"), WarmItem("large.py")], Urgency.IMPORTANT)
    progress = worker.service.run_once()
    assert (progress.state, progress.refused) == ("full", 1)
    assert progress.used_bytes <= progress.budget_bytes
    assert not engine.missing(list(scene.entries("small.py")))
    assert engine.missing(list(scene.entries("large.py")))

    worker.warm(scene.index, [WarmItem("large.py")])
    ids = [*scene.entries("small.py"), *scene.entries("large.py")]
    there = set(ids) - engine.missing(ids)
    tokens = sum((scene.entries("small.py") | scene.entries("large.py"))[entry] for entry in there)
    assert there >= set(scene.entries("large.py"))
    assert tokens * engine.token_bytes <= progress.budget_bytes


def test_a_step_of_the_worker_waits_in_the_engine_until_agents_are_served(scene: Scene) -> None:
    text = scene.file("wait")
    (stream,) = scene.streams.of_file(*scene.index.snapshot("wait.py"))
    ended: list[str] = []

    def agent() -> None:
        scene.ask("a short question", max_tokens=120, ignore_eos=True)
        ended.append("agent")

    thread = threading.Thread(target=agent)
    thread.start()
    deadline = time.monotonic() + 30
    while not scene.client.traffic()["running"]:
        assert time.monotonic() < deadline
    time.sleep(0.3)  # into the engine
    scene.client.precompute(SERVED, stream.tokens.tolist(), stream.cuts)
    ended.append("worker")
    thread.join()
    assert ended == ["agent", "worker"]
    now = scene.client.traffic()
    assert now["running"] == 0
    assert now["requests"] >= 1, "the agent's, and not the worker's"
    assert text


def test_what_agents_use_is_told(scene: Scene) -> None:
    text = scene.file("used")
    worker = scene.worker()
    worker.warm(scene.index, [WarmItem("used.py")])
    engine = RemoteEngine(scene.client)
    last, _ = engine.touched(0)
    scene.ask(text)
    deadline = time.monotonic() + 30
    while engine.touched(last)[0] == last:
        assert time.monotonic() < deadline
        scene.ask("something else, so that the engine makes another step")
    _, requests = engine.touched(last)
    assert set(requests[0]) & set(scene.entries("used.py"))


def test_the_command_warms_once_and_says_what_is_wrong(running: Engine, scene: Scene) -> None:
    text = scene.file("command")
    done = command(scene.root, running.url, "--once", "--json")
    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert (last["state"], last["queued_blocks"]) == ("idle", 0)
    assert last["warm_blocks"] == last["blocks"] > 0
    assert last["tokens_computed"] >= scene.tokens(text)
    again = command(scene.root, running.url, "--once")
    assert " 0 tokens computed" in again.stdout.splitlines()[-1]
    shown = scene.client.status()["warm"]
    assert (shown["state"], shown["budget_bytes"] > 0) == ("idle", True)
    for arguments, expected in (
        (["--model", "no-such-model"], "no-such-model"),
        (["--budget", "plenty"], "plenty"),
    ):
        wrong = command(scene.root, running.url, *arguments)
        assert wrong.returncode == 1
        assert expected in wrong.stderr
        assert len(wrong.stderr.strip().splitlines()) == 1, wrong.stderr


def test_an_engine_that_dies_ends_the_command_in_one_line(running: Engine, scene: Scene) -> None:
    for number in range(4):
        scene.file(f"dying_{number}")
    process = subprocess.Popen(
        arguments(scene.root, running.url, "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    os.killpg(running.pid, signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert len(errors.strip().splitlines()) == 1, errors
    assert "does not answer" in errors


def command(root: Path, url: str, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments(root, url, *more), capture_output=True, text=True, check=False, timeout=120
    )


def arguments(root: Path, url: str, *more: str) -> list[str]:
    return [sys.executable, "-m", "agentcache.cli", "warm", str(root), "--engine-url", url, *more]
