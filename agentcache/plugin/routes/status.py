"""What the engine counts, and what the warm worker needs to know and to tell."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from agentcache import __version__
from agentcache.plugin import frontend
from agentcache.plugin.routes.ask import ask, ask_ranks
from agentcache.plugin.rpc import MISSING, SELFTEST, STATUS

router = APIRouter(prefix="/agentcache")


class Warmth(BaseModel):
    """What the warm worker has done. Counts are of the indexed repositories' blocks, not of entries.

    queue: jobs that wait, by class of urgency; used_bytes, budget_bytes: of entries that it keeps, and may keep
    tokens_per_s: while it computes; refused: jobs that did not fit the budget
    last_edit: the last edit that was warmed: path, blocks, tokens computed, seconds from the save on
    """

    roots: list[str] = Field(default_factory=list)
    blocks: int = 0
    warm_blocks: int = 0
    queued_blocks: int = 0
    tokens_computed: int = 0
    state: str = "off"
    queue: dict[str, int] = Field(default_factory=dict)
    used_bytes: int = 0
    budget_bytes: int = 0
    refused: int = 0
    tokens_per_s: float = 0.0
    last_edit: dict[str, Any] | None = None


class EntryIds(BaseModel):
    entries: list[str] = Field(max_length=100_000)


@router.get("/status")
async def status(request: Request) -> dict[str, Any]:
    """Everything agentcache counts."""
    state = request.app.state
    engine = await ask(request, STATUS)
    warmth: Warmth = state.agentcache_warmth
    return {
        "version": __version__,
        "model": state.agentcache_model,
        "blocks": warmth.blocks,
        "warm_blocks": warmth.warm_blocks,
        "warm": warmth.model_dump(),
        "learned": state.agentcache_learned.model_dump(),
        "shadow": state.agentcache_shadow.to_dict() if state.agentcache_shadow is not None else None,
        **engine,
    }


@router.post("/missing")
async def missing(request: Request, body: EntryIds) -> dict[str, list[str]]:
    """Which entries would have to be computed."""
    missing = {one for rank in await ask_ranks(request, MISSING, body.entries) for one in rank}
    return {"missing": [one for one in body.entries if one in missing]}


@router.post("/selftest")
async def selftest(request: Request) -> dict[str, Any]:
    """Try blending on the engine, against its own full prefill; the first verdict stays."""
    verdict: dict[str, Any] = await ask(request, SELFTEST)
    return verdict


@router.put("/warm")
async def report_warmth(request: Request, body: Warmth) -> dict[str, Any]:
    """The warm worker tells how far it is. `wants`: what it is asked for; it answers with `PUT /agentcache/told`."""
    request.app.state.agentcache_warmth = body
    if frontend.METRICS is not None:
        frontend.METRICS.warmth(body.blocks, body.warm_blocks, body.queue)
    return {"status": "ok", "wants": request.app.state.agentcache_shown.wants()}
