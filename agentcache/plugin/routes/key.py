"""The routes that only the warm worker may use: they show others' prompts, or delete what others computed."""

from __future__ import annotations

import secrets

from fastapi import HTTPException, Request

from agentcache.engine_client import WORKER_KEY_HEADER
from agentcache.settings import WORKER_KEY, worker_key


def needs_key(request: Request) -> None:
    """A dependency of such routes. HTTP 403 without the key; with no key set they are closed to everybody.

    vLLM's own `--api-key` guards `/v1` alone, and all of its users share it.
    """
    expected = worker_key()
    if not expected:
        raise HTTPException(
            403, f"start the server with {WORKER_KEY} in its environment, and the worker with the same"
        )
    if not secrets.compare_digest(request.headers.get(WORKER_KEY_HEADER, "").encode(), expected.encode()):
        raise HTTPException(403, f"this is for the warm worker, which sends {WORKER_KEY}")
