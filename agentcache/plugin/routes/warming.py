"""What the warm worker asks besides what is missing: who else uses the server, what they used, what may go.

GET  /agentcache/traffic?wait_s=S    agents' requests; answers when none runs, or after S seconds
GET  /agentcache/touched?after=N     entries that agents' requests reused, from the request with number N + 1 on
POST /agentcache/drop                {"entries": [id, ...]}: delete them
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, Query, Request

from agentcache.plugin.routes.ask import ask
from agentcache.plugin.routes.key import needs_key
from agentcache.plugin.routes.status import EntryIds
from agentcache.plugin.rpc import DROP, TOUCHED
from agentcache.plugin.traffic import Traffic

router = APIRouter(prefix="/agentcache")

_LONGEST_WAIT_S = 60.0


@router.get("/traffic")
async def traffic(request: Request, wait_s: float = Query(0.0, ge=0.0, le=_LONGEST_WAIT_S)) -> dict[str, Any]:
    """What agents do now. Asks no engine: it answers while a step runs."""
    counts: Traffic = request.app.state.agentcache_traffic
    if wait_s:
        await counts.wait(wait_s)
    return counts.to_dict()


@router.get("/touched", dependencies=[Depends(needs_key)])
async def touched(request: Request, after: int = Query(0, ge=0)) -> dict[str, Any]:
    """`requests`: for each request that reused something its entries, the oldest first; `last`: the newest's number."""
    answer: dict[str, Any] = await ask(request, TOUCHED, after)
    return answer


@router.post("/drop", dependencies=[Depends(needs_key)])
async def drop(request: Request, body: EntryIds) -> dict[str, str]:
    """Delete entries from every tier."""
    await ask(request, DROP, body.entries)
    return {"status": "ok"}
