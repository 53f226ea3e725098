"""Two servers with stores of their own and one remote tier: what one computes, the other reuses."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from typing import Any

import pytest

from agentcache.engine import Engine, EngineOptions
from agentcache.plugin.reach import LATE, SLOWER, WAITED
from agentcache.settings import EngineSettings
from tests.engine.serving import SERVED, Server, largest_difference
from tests.store import servers

pytestmark = pytest.mark.engine

Encode = Callable[[str], list[int]]


@pytest.fixture(scope="module", params=["redis", "s3"])
def machines(
    request: pytest.FixtureRequest,
    model_folder: str,
    encode: Encode,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Server, Server]]:
    folder = tmp_path_factory.mktemp("machines")
    with ExitStack() as stack:
        environment = stack.enter_context(pytest.MonkeyPatch.context())
        environment.setenv("AWS_ACCESS_KEY_ID", "test")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "test")
        remote = stack.enter_context(servers.redis(folder) if request.param == "redis" else servers.s3())
        engines = [
            stack.enter_context(
                Engine(
                    EngineOptions(
                        model=model_folder,
                        served_name=SERVED,
                        kv_gib=1,
                        settings=EngineSettings(
                            store_dir=str(folder / name), ram_bytes=128 << 20, remote_url=remote.url
                        ),
                        extra=(
                            "--dtype",
                            "float32",
                            "--max-model-len",
                            "2048",
                            "--enforce-eager",
                            "--seed",
                            "0",
                        ),
                    )
                )
            )
            for name in ("one", "two")
        ]
        running = []
        for engine, name in zip(engines, ("one", "two"), strict=True):
            engine.wait_ready()
            running.append(Server(stack.enter_context(engine.client()), folder / name, encode))
        yield running[0], running[1]


def wait_for(check: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60.0
    while not check():
        assert time.monotonic() < deadline, "it did not happen within a minute"
        time.sleep(0.1)


def test_what_one_warms_the_other_reuses(
    machines: tuple[Server, Server], texts: dict[str, list[int]], encode: Encode
) -> None:
    one, two = machines
    code, learned = texts["textwrap"][:400], encode("A template that every prompt has. " * 20)
    one.store(code, 0, 200, 400)
    one.client.precompute(SERVED, learned, [0, len(learned)], domain="own")
    wait_for(lambda: two.status()["tiers"]["remote"]["entries"] == 3)
    assert two.status()["tiers"]["disk"]["entries"] == 0, "nothing of it was computed here"

    exact = two.ask(code + texts["question"], mode="exact")
    in_place = two.ask(code + texts["question"], mode="fast")
    reasons = two.status()["fallbacks"]
    assert sum(reasons.get(reason, 0) for reason in (WAITED, SLOWER, LATE)) == 1, "it was decided, once"
    if (
        in_place.counters["reused_tokens"] == 0
    ):  # this machine was busy: computing was faster, and now they are here
        assert WAITED not in reasons
        wait_for(lambda: two.status()["tiers"]["ram"]["entries"] == 2)
        in_place = two.ask(code + texts["question"], salt="again", mode="fast")
    assert in_place.counters["reused_tokens"] >= 399
    assert in_place.tokens == exact.tokens
    assert largest_difference(in_place.first, exact.first) < 1e-3

    def shuffled(attempt: int) -> int:
        """Tokens reused of the same pieces behind another beginning."""
        prompt = encode(f"Attempt {attempt}:\n") + learned + code[200:] + code[:200] + texts["question"]
        return int(two.ask(prompt, mode="fast").counters["reused_tokens"])

    attempts = count()
    wait_for(lambda: shuffled(next(attempts)) > 400)
    status = two.status()
    assert status["tiers"]["remote"]["hits"] == 3, "each once"
    assert status["store"]["errors"] == {}
