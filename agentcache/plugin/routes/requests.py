"""What agents' requests reused and what they cost; what the warm worker is asked about it, and answers.

GET /agentcache/requests?limit=N   the latest requests, the latest first
GET /agentcache/blocks             the indexed files: size, and how much of each is warm
PUT /agentcache/told               {"names": {entry: name}, "files": [...]}: the warm worker's answer
"""

from __future__ import annotations

import time
from typing import Any, Final

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel, Field

from agentcache.observe.log import KEPT
from agentcache.observe.names import KEPT as KEPT_NAMES
from agentcache.plugin import frontend
from agentcache.plugin.routes.key import needs_key

router = APIRouter(prefix="/agentcache")

MAX_FILES: Final = 5000
_LOOKED_S: Final = 15.0
"""How long somebody counts as looking at the files after they were asked for."""


class Name(BaseModel):
    """What an entry is. path, name, line: a block of a file; learned: prompt text that is no source, in words"""

    path: str = ""
    name: str = ""
    line: int = 0
    learned: str = ""


class File(BaseModel):
    """An indexed file. blocks, warm: different blocks in it, and those that have an entry"""

    path: str
    bytes: int
    blocks: int
    warm: int


class Told(BaseModel):
    """files: the largest ones; None: unchanged. num_files: all that there are"""

    names: dict[str, Name] = Field(default_factory=dict, max_length=KEPT_NAMES)
    files: list[File] | None = Field(default=None, max_length=MAX_FILES)
    num_files: int = 0


class Shown:
    """What the page shows of the indexed files, and whether anybody looks."""

    def __init__(self) -> None:
        self.files: list[File] = []
        self.num_files = 0
        self._looked_at = float("-inf")

    def look(self) -> None:
        self._looked_at = time.monotonic()

    def wants(self) -> dict[str, Any]:
        """What the warm worker is asked for: it answers with `PUT /agentcache/told`."""
        looked = time.monotonic() - self._looked_at < _LOOKED_S
        return {"names": frontend.NAMES.wanted(frontend.LOG.entries(KEPT)), "files": looked}


@router.get("/requests")
async def requests(limit: int = Query(100, ge=1, le=KEPT)) -> dict[str, Any]:
    """Asks no engine: records come with vLLM's statistics."""
    log = frontend.LOG
    return {"kept": len(log), "seen": log.num_added, "requests": log.latest(limit, frontend.NAMES)}


@router.get("/blocks")
async def blocks(request: Request) -> dict[str, Any]:
    """The largest files, MAX_FILES at most. The first answer after a while may be of then, or empty."""
    shown: Shown = request.app.state.agentcache_shown
    shown.look()
    return {"num_files": shown.num_files, "files": [file.model_dump() for file in shown.files]}


@router.put("/told", dependencies=[Depends(needs_key)])
async def told(request: Request, body: Told) -> dict[str, str]:
    """The warm worker answers what it was asked."""
    frontend.NAMES.add({entry: name.model_dump(exclude_defaults=True) for entry, name in body.names.items()})
    if body.files is not None:
        shown: Shown = request.app.state.agentcache_shown
        shown.files, shown.num_files = body.files, body.num_files
    return {"status": "ok"}
