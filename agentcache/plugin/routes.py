"""vLLM endpoint plug-in: agentcache's HTTP routes on the same port as the model's APIs.

    GET  /agentcache/status    counters, tiers, warmth, as JSON
    POST /agentcache/missing   {"entries": [id, ...]} -> {"missing": [id, ...]}
    PUT  /agentcache/warm      the warm worker's progress, shown in the status
    POST /agentcache/selftest  tries blending on the engine, once -> verdict; a failure ends blending

Mounted only when allow-listed: `VLLM_PLUGINS=agentcache`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, FastAPI, HTTPException, Request
from pydantic import BaseModel, Field

import agentcache
from agentcache.plugin.register import MISSING_RPC, SELFTEST_RPC, STATUS_RPC

if TYPE_CHECKING:
    from argparse import Namespace

    from starlette.datastructures import State
    from vllm.engine.protocol import EngineClient

router = APIRouter(prefix="/agentcache")


class Warmth(BaseModel):
    """What the warm worker has done. Counts are of the indexed repositories' blocks, not of entries."""

    roots: list[str] = Field(default_factory=list)
    blocks: int = 0
    warm_blocks: int = 0
    queued_blocks: int = 0
    tokens_computed: int = 0
    state: str = "off"


class EntryIds(BaseModel):
    entries: list[str] = Field(max_length=100_000)


class AgentCacheRoutes:
    """Entry point `vllm.endpoint_plugins`."""

    name = "agentcache"
    required_tasks = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        app.include_router(router)

    async def init_state(self, engine_client: EngineClient | None, state: State, args: Namespace) -> None:
        state.agentcache_engine = engine_client
        state.agentcache_warmth = Warmth()
        state.agentcache_model = (args.served_model_name or [args.model])[0]


@router.get("/status")
async def status(request: Request) -> dict[str, Any]:
    """Everything agentcache counts."""
    state = request.app.state
    engine = await _ask(request, STATUS_RPC)
    warmth: Warmth = state.agentcache_warmth
    return {
        "version": agentcache.__version__,
        "model": state.agentcache_model,
        "blocks": warmth.blocks,
        "warm_blocks": warmth.warm_blocks,
        "warm": warmth.model_dump(),
        **engine,
    }


@router.post("/missing")
async def missing(request: Request, body: EntryIds) -> dict[str, list[str]]:
    """Which entries would have to be computed."""
    return {"missing": await _ask(request, MISSING_RPC, body.entries)}


@router.post("/selftest")
async def selftest(request: Request) -> dict[str, Any]:
    """Try blending on the engine, against its own full prefill; the first verdict stays."""
    verdict: dict[str, Any] = await _ask(request, SELFTEST_RPC)
    return verdict


@router.put("/warm")
async def report_warmth(request: Request, body: Warmth) -> dict[str, str]:
    """The warm worker tells how far it is."""
    request.app.state.agentcache_warmth = body
    return {"status": "ok"}


async def _ask(request: Request, method: str, *args: Any) -> Any:
    """Call one worker method on every rank; the first rank answers."""
    engine: EngineClient | None = request.app.state.agentcache_engine
    if engine is None:
        raise HTTPException(503, "this server has no engine")
    try:
        answers = await engine.collective_rpc(method, args=args)
    except Exception as error:
        raise HTTPException(503, f"the engine does not answer: {error}") from error
    return answers[0]
