"""Asking the engine's workers from a route."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import HTTPException, Request

if TYPE_CHECKING:
    from vllm.engine.protocol import EngineClient


async def ask(request: Request, method: str, *args: Any) -> Any:
    """Call one worker method (`agentcache.plugin.rpc`) on every rank; the first rank answers. HTTP 503 if none does."""
    return (await ask_ranks(request, method, *args))[0]


async def ask_ranks(request: Request, method: str, *args: Any) -> list[Any]:
    """The same, every rank's answer."""
    engine: EngineClient | None = request.app.state.agentcache_engine
    if engine is None:
        raise HTTPException(503, "this server has no engine")
    try:
        answers: list[Any] = await engine.collective_rpc(method, args=args)
    except Exception as error:
        raise HTTPException(503, f"the engine does not answer: {error}") from error
    return answers
