"""What a running engine knows of warm text, for whoever is not inside of it."""

from __future__ import annotations

from agentcache.context.streams import Streams, max_position
from agentcache.context.warmth import EngineView
from agentcache.engine_client import EngineClient
from agentcache.errors import AgentCacheError, EngineError, UsageError
from agentcache.models import resolve


def view_of(client: EngineClient, model: str = "") -> EngineView:
    """An engine that can be asked what is warm. `model` is whose tokenizer it has, if its own name for it does not say.

    Raises EngineError if it does not answer, UsageError if its tokenizer is not to be had here.
    """
    status = client.status()
    served = client.get("/v1/models")["data"][0]
    longest = int(served.get("max_model_len") or 0)
    fingerprint = str(status.get("fingerprint", ""))
    if not longest or not fingerprint:
        raise EngineError(f"the engine at {client.url} does not say what it serves; is its version older?")
    try:
        folder = resolve(model or str(served["id"]))
        streams = Streams(folder, min(max_position(folder) or longest, longest) - 1)
    except AgentCacheError as error:
        raise UsageError(f"{error}; name the served model's folder with --model") from error
    return EngineView(fingerprint, client.missing, streams)
