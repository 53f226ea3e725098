"""For the worker that learns: what requests left to learn, what it has learned, and what may go."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, Field

from agentcache.plugin.routes.ask import ask
from agentcache.plugin.routes.key import needs_key
from agentcache.plugin.rpc import NOTES, WEIGH

router = APIRouter(prefix="/agentcache", dependencies=[Depends(needs_key)])


class Learned(BaseModel):
    """What the learner has. spans, tokens, bytes: of learned entries that exist; budget_bytes: they may take
    hits, hit_tokens: requests that reused one, and tokens of it, recomputed ones included
    tokens_computed: by the engine for all that was learned since the worker began
    queued: spans that are still to be computed; evicted: that did not return
    handled: of the engine's notes, all whose spans exist or were given up; views: of files, that clients use
    """

    state: str = "off"
    spans: int = 0
    tokens: int = 0
    bytes: int = 0
    budget_bytes: int = 0
    hits: int = 0
    hit_tokens: int = 0
    tokens_computed: int = 0
    queued: int = 0
    evicted: int = 0
    handled: int = 0
    views: list[str] = Field(default_factory=list)


class Weights(BaseModel):
    weights: dict[str, float] = Field(max_length=100_000)


@router.post("/notes")
async def notes(request: Request) -> dict[str, Any]:
    """Each note once: whoever asks has it computed."""
    taken: dict[str, Any] = await ask(request, NOTES)
    return taken


@router.post("/weigh")
async def weigh(request: Request, body: Weights) -> dict[str, str]:
    """1 is usual, 0 is never again."""
    await ask(request, WEIGH, body.weights)
    return {"status": "ok"}


@router.put("/learned")
async def report_learned(request: Request, body: Learned) -> dict[str, str]:
    """The learner tells how far it is."""
    request.app.state.agentcache_learned = body
    return {"status": "ok"}
