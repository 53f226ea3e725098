"""A server with our page and routes, and no engine: what they show is made up, file names hostile among it."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI

from agentcache.listening import listen
from agentcache.observe.log import RequestLog
from agentcache.observe.names import Names
from agentcache.plugin import frontend
from agentcache.plugin.routes import page
from agentcache.plugin.routes import requests as routes

HOSTILE = "src/<img src=x onerror=document.title='owned'>\"'&.py"
ROOT = Path(__file__).parents[2]


def files() -> list[routes.File]:
    """Those of this repository, some of them warm."""
    rng = random.Random(4)
    found = [routes.File(path=HOSTILE, bytes=9_000, blocks=9, warm=9)]
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith((".", "agentcache/indexer", "agentcache/kernels", "agentcache/cli", "build")):
            blocks = 1 + path.stat().st_size // 900
            warm = (
                0
                if name.startswith("benchmarks")
                else min(blocks, int(blocks * rng.choice((0.4, 1, 1, 1, 1.2))))
            )
            found.append(routes.File(path=name, bytes=max(1, path.stat().st_size), blocks=blocks, warm=warm))
    return found


def fill(log: RequestLog, names: Names, count: int = 40) -> None:
    """Requests of an agent that shows files in ever another order."""
    rng = random.Random(7)
    shown = [
        HOSTILE,
        "agentcache/plugin/scheduler.py",
        "agentcache/match/matcher.py",
        "agentcache/serve.py",
        "indexer/reader.py",
    ]
    for number in range(200):
        path = shown[number % len(shown)]
        names.add({f"entry{number}": {"path": path, "name": f"Thing.method_{number}", "line": 3 * number}})
    names.add({"learned": {"learned": "learned text"}})
    for number in range(count):
        record = _record(rng, number, time.time() - 9 * (count - number))
        log.add(record)


def _record(rng: random.Random, number: int, at: float) -> dict[str, Any]:
    prefix = rng.choice((0, 128, 256, 1_280))
    place, spans = prefix + 40, []
    for _ in range(rng.randint(2, 14)):
        length = rng.randint(60, 500)
        spans.append([place, place + length, rng.choice(["learned", f"entry{rng.randrange(200)}"]), 16])
        place += length + rng.choice((0, 0, 30, 200))
    prompt, inside = place + 60, sum(stop - start for start, stop, _, _ in spans)
    recomputed = 16 * len(spans)
    parting = {
        "other": f"chatcmpl-{number - 1}",
        "common": prefix + 18,
        "before": (1,),
        "now": (2,),
        "was": (3,),
    }
    return {
        "request_id": f"chatcmpl-{number}",
        "mode": "exact" if number % 11 == 10 else "fast",
        "prompt_tokens": prompt,
        "prefix_hit_tokens": prefix,
        "reused_tokens": inside - recomputed,
        "recomputed_tokens": recomputed,
        "computed_tokens": prompt - prefix - inside,
        "spans": len(spans),
        "fallback": "LoRA" if number % 17 == 16 else "",
        "load_s": 0.03,
        "recompute_s": 0.1,
        "finished_at": at,
        "arrived_at": at - 2,
        "queue_s": 0.01,
        "ttft_s": None if number % 13 == 12 else 0.08 + 0.4 * rng.random(),
        "output_tokens": 40,
        "placed": spans,
        "parting": parting if number % 3 else None,
    }


def decode(tokens: Any) -> str:
    """Stands for a tokenizer: what is in front, now and was."""
    words = {1: "You are an agent.\nToday is 2026-11-", 2: "30 <b>09:14</b>", 3: "29 18:02"}
    return "".join(words[token] for token in tokens)


STATUS: dict[str, Any] = {
    "model": "smollm2-135m",
    "blending": True,
    "unsupported": "",
    "warm": {
        "state": "warming",
        "blocks": 4180,
        "warm_blocks": 3204,
        "queue": {"edit": 1, "touched": 14, "important": 310, "alone": 655},
        "last_edit": {"path": "a.py", "seconds": 0.9},
    },
    "tiers": {
        "ram": {"bytes": 1_400_000_000, "budget_bytes": 2_147_483_648},
        "disk": {"bytes": 6_700_000_000, "budget_bytes": 21_474_836_480},
    },
    "shadow": {
        "share": 0.01,
        "samples": 42,
        "mean_kl": 0.011,
        "agreement": 0.976,
        "tripped": "",
        "fast_s": 0.31,
        "exact_s": 4.4,
    },
}


@contextmanager
def serving(*, empty: bool = False) -> Iterator[str]:
    """Base URL of the server."""
    before = frontend.LOG, frontend.NAMES
    frontend.LOG, frontend.NAMES = RequestLog(), Names()
    frontend.LOG.decode = decode
    app = FastAPI()
    app.include_router(page.router)
    app.include_router(routes.router)
    app.state.agentcache_shown = shown = routes.Shown()
    status = {"model": "m", "blending": True, "warm": {"state": "off"}, "tiers": {}} if empty else STATUS

    @app.get("/agentcache/status")
    async def answer() -> dict[str, Any]:
        return status

    if not empty:
        fill(frontend.LOG, frontend.NAMES)
        shown.files = files()
        shown.num_files = len(shown.files)
    bound = listen("127.0.0.1", 0)  # nobody is refused while the thread starts
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10.0)
        bound.close()
        frontend.LOG, frontend.NAMES = before
