"""A real `agentcache serve` with a key: killed under load it comes back warm; limits; two ways to end it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from tests.serve.test_serve import GREETING, PARTING, Running, children, is_zombie

pytestmark = pytest.mark.engine
KEY = "a-key-of-the-tests"
HEADERS = {"Authorization": f"Bearer {KEY}"}
RETRIED = {500, 502, 503}
"""What every SDK tries again; a reset connection is, too."""


@pytest.fixture(scope="module")
def module_home(tmp_path_factory: pytest.TempPathFactory, model_folder: str) -> Path:
    home = tmp_path_factory.mktemp("home")
    (home / "models").symlink_to(Path(model_folder).parent)
    return home


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two repositories."""
    made = []
    for name, text in (("greeting", GREETING), ("parting", PARTING)):
        root = tmp_path_factory.mktemp(name)
        (root / f"{name}.py").write_text(text)
        subprocess.run(["git", "init", "-q", str(root)], check=True)
        made.append(root)
    return made


@pytest.fixture(scope="module")
def served(roots: list[Path], module_home: Path) -> Iterator[Running]:
    os.environ["AGENTCACHE_API_KEY"] = KEY
    try:
        running = Running(
            roots[0],
            module_home,
            *(str(roots[1]), "--max-body", "1MB", "--grace", "20"),
            *("--", "--enforce-eager", "--max-model-len", "2048"),
        )
    finally:
        del os.environ["AGENTCACHE_API_KEY"]
    yield running
    if running.process.poll() is None:
        running.process.kill()
        running.process.wait(60)


def status(url: str) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{url}/agentcache/status", headers=HEADERS, timeout=60).json()
    return found


def ask(url: str, text: str, **options: Any) -> httpx.Response:
    body = {
        "model": "smollm2-135m",
        "messages": [{"role": "user", "content": f"Look at this:\n{text}\nWhat is it?"}],
        "max_tokens": 1,
        "kv_transfer_params": {"agentcache": {"mode": "fast"}},
    }
    return httpx.post(f"{url}/v1/chat/completions", headers=HEADERS, json=body | options, timeout=120)


def reused(url: str, text: str) -> int:
    return int(ask(url, text).json()["kv_transfer_params"]["agentcache"]["reused_tokens"])


def until_warm(running: Running) -> str:
    url = running.url
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        warm = status(url)["warm"]
        if warm["state"] == "idle" and warm["warm_blocks"] == warm["blocks"] > 0:
            return url
        time.sleep(0.3)
    raise AssertionError(f"not warm: {running.lines}")


def test_two_repositories_are_warm_and_a_key_opens_everything(served: Running, roots: list[Path]) -> None:
    url = until_warm(served)
    assert reused(url, PARTING + "\n" + GREETING) > 80
    for path in ("/v1/models", "/agentcache/status", "/agentcache/requests"):
        assert httpx.get(url + path).status_code == 401, path
        assert httpx.get(url + path, headers={"x-api-key": KEY}).status_code == 200, path
    assert openai.OpenAI(base_url=f"{url}/v1", api_key=KEY).models.list().data
    message = anthropic.Anthropic(base_url=url, api_key=KEY).messages.create(
        model="smollm2-135m", max_tokens=2, messages=[{"role": "user", "content": "hello"}]
    )
    assert message.usage.output_tokens == 2
    seen = subprocess.run(["ps", "-eww", "-o", "args"], capture_output=True, text=True, check=True).stdout
    assert KEY not in seen, "a key on a command line is everybody's"


def test_a_body_over_the_limit_is_refused_before_it_is_read(served: Running) -> None:
    url = served.url
    assert ask(url, "x" * (1 << 20)).status_code == 413
    assert ask(url, "x y " * 200).status_code == 200


def test_an_engine_that_somebody_else_runs_is_used_and_left_alone(
    served: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = until_warm(served)
    root = tmp_path / "third"
    root.mkdir()
    text = GREETING.replace("greet", "salute").replace("hello", "ahoy, and welcome on board of this ship")
    (root / "salute.py").write_text(text)
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    monkeypatch.setenv("AGENTCACHE_API_KEY", KEY)
    second = Running(root, tmp_path / "second-home", "--engine-url", url)
    second.wait_for("warm:")
    assert reused(url, "# before\n" + text) > 40
    second.process.send_signal(signal.SIGINT)
    assert second.process.wait(60) == 130
    assert ask(url, "still here?").status_code == 200
    without = {**os.environ, "AGENTCACHE_API_KEY": ""}
    command = [sys.executable, "-m", "agentcache.cli", "serve", "--engine-url", url]
    done = subprocess.run(command, env=without, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "401" in done.stderr


@pytest.mark.parametrize("victim", ["VLLM::EngineCore", "agentcache.engine_process"])
def test_an_engine_killed_under_load_comes_back_warm(served: Running, victim: str) -> None:
    url = until_warm(served)
    seen: Counter[str] = Counter()
    stop = threading.Event()

    def load() -> None:
        while not stop.is_set():
            try:
                answer = ask(url, GREETING, max_tokens=8)
            except httpx.TransportError:
                seen["connection"] += 1
                time.sleep(0.05)
                continue
            seen[str(answer.status_code)] += 1
            if answer.status_code == 503 and "starting" in answer.text:
                assert int(answer.headers["retry-after"]) >= 1
                time.sleep(0.2)

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(1.0)
    os.kill(process_named(served.process.pid, victim), signal.SIGKILL)
    said = len(served.lines)
    deadline = time.monotonic() + 300
    while not any(line.startswith("engine: answers again") for line in served.lines[said:]):
        assert served.process.poll() is None, served.lines
        assert time.monotonic() < deadline, served.lines
        time.sleep(0.2)
    time.sleep(1.0)
    stop.set()
    for thread in threads:
        thread.join(120)
    assert set(seen) <= {"200", "connection", *map(str, RETRIED)}, seen
    assert seen["200"], "answered before and after"
    assert seen["503"], "and told when to come again in between"
    assert reused(url, "# and now\n" + PARTING + "\n" + GREETING) > 80, "the next request is warm"
    until_warm(served)


def process_named(parent: int, name: str) -> int:
    for pid in children(parent):
        title = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        if name in title:
            return pid
    raise AssertionError(f"no process {name}")


def test_ctrl_c_lets_an_answer_end(served: Running) -> None:
    url = until_warm(served)
    pieces: list[str] = []

    def long() -> None:
        body = {
            "model": "smollm2-135m",
            "prompt": "Once",
            "max_tokens": 150,
            "stream": True,
            "ignore_eos": True,
        }
        with httpx.stream("POST", f"{url}/v1/completions", headers=HEADERS, json=body, timeout=60) as answer:
            pieces.extend(line for line in answer.iter_lines() if line)

    below = children(served.process.pid)
    asking = threading.Thread(target=long)
    asking.start()
    while not pieces and asking.is_alive():
        time.sleep(0.01)
    served.process.send_signal(signal.SIGINT)
    asking.join(60)
    assert pieces[-1] == "data: [DONE]", pieces[-1]
    assert served.process.wait(60) == 130
    time.sleep(0.5)
    assert not {pid for pid in below if Path(f"/proc/{pid}").exists() and not is_zombie(pid)}
    assert "Traceback" not in "\n".join(served.lines)


def test_an_engine_url_that_does_not_answer_is_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "agentcache.cli", "serve", "--engine-url", "http://127.0.0.1:9"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert "no engine answers at http://127.0.0.1:9" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
