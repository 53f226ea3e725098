"""A client says what its next prompts will hold.

POST /agentcache/expect    {"tokens": [[id, ...], ...], "cache_salt": "..."}: text that will come soon
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from agentcache.plugin.routes.ask import ask
from agentcache.plugin.rpc import EXPECT

router = APIRouter(prefix="/agentcache")


TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]


class Expected(BaseModel):
    """Token ids, each list a text by itself; `cache_salt` as in the prompts that they will come in."""

    tokens: list[list[TokenId]] = Field(max_length=1000)
    cache_salt: str | None = None


@router.post("/expect")
async def expect(request: Request, body: Expected) -> dict[str, bool]:
    """As if the model had answered that. `taken`: whether anybody learns here."""
    return {"taken": bool(await ask(request, EXPECT, body.tokens, body.cache_salt or ""))}
