"""Source text by reference, out of the roots that the server was started with."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from agentcache.context.assemble import MAX_ITEMS, Order
from agentcache.errors import AgentCacheError, UsageError

if TYPE_CHECKING:
    from agentcache.plugin.navigation import Navigation

router = APIRouter(prefix="/agentcache")


class Wanted(BaseModel):
    """What to put together: references, most tokens in all, and in which order (`agentcache.context.Context.get`)."""

    items: Annotated[list[str], Field(max_length=MAX_ITEMS)]
    token_budget: Annotated[int, Field(ge=1)] | None = None
    order: Order = "given"


@router.post("/context")
async def context(request: Request, body: Wanted) -> Response:
    """The text of `items`, with what it takes and what of it is warm. 400 names a reference that is no good."""
    navigation: Navigation = request.app.state.agentcache_navigation
    try:
        answer = await navigation.get(body.items, body.token_budget, body.order)
    except UsageError as error:
        return _json({"error": _error(str(error), "BadRequestError", 400)}, 400)
    except AgentCacheError as error:
        return _json({"error": _error(str(error), "ServiceUnavailableError", 503)}, 503)
    return _json(answer, 200)


def _error(message: str, kind: str, code: int) -> dict[str, object]:
    """In the shape of vLLM's own errors, which would take paths for secrets and cut them out."""
    return {"message": message, "type": kind, "param": None, "code": code}


def _json(content: object, status: int) -> Response:
    """In ASCII: a file's name may hold bytes that are no text."""
    return Response(json.dumps(content), status, media_type="application/json")
