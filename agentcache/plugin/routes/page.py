"""`GET /agentcache/`: a page of one file that shows what the JSON routes say. It loads nothing from anywhere else."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, RedirectResponse

router = APIRouter(prefix="/agentcache")

_FILE = Path(__file__).parent.parent / "assets" / "page.html"


@cache
def _page() -> tuple[str, dict[str, str]]:
    """The page and its headers. Its own script and style are allowed by their hashes, and no others."""
    text = _FILE.read_text(encoding="utf-8")
    script, style = (_hash(text, tag) for tag in ("script", "style"))
    policy = (
        f"default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return text, {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }


def _hash(text: str, tag: str) -> str:
    (body,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()}'"


@router.get("/", response_class=HTMLResponse)
async def page() -> HTMLResponse:
    """What the engine does now, to look at."""
    text, headers = _page()
    return HTMLResponse(text, headers=headers)


@router.get("", include_in_schema=False)
async def without_slash() -> RedirectResponse:
    """The page asks for its data beside itself, so it needs the slash."""
    return RedirectResponse("agentcache/")
