"""The tokenizer of a model that somebody else serves, checked against the server's own."""

from __future__ import annotations

from agentcache.context import Streams
from agentcache.context.streams import max_position
from agentcache.engine_client import EngineClient
from agentcache.errors import EngineError, ModelError
from agentcache.models import resolve

_SAMPLE = 'def größe(x: int) -> str:\n\treturn f"{x:>8}"  # 12 %\n\n\nclass A(B):\n    pass\n'
_DEFAULT_MAX_TOKENS = 8192


def streams_of(client: EngineClient, served: str, model: str = "") -> Streams:
    """Streams for the model that the server calls `served`.

    model: name, folder or hub id where that is none of these
    EngineError if the model found that way cuts text into other tokens than the server; ModelError if there is none.
    """
    try:
        folder = resolve(model or served)
        longest = max_position(folder) or _DEFAULT_MAX_TOKENS
        card = client.get("/v1/models")["data"][0]
        streams = Streams(folder, min(longest, int(card.get("max_model_len") or longest)) - 1)
    except ModelError as error:
        if model:
            raise
        raise ModelError(
            f"the server calls its model {served!r}, which says nothing here ({error}); give --model NAME, FOLDER or ID"
        ) from error
    body = {"model": served, "prompt": _SAMPLE, "add_special_tokens": False}
    theirs = client.post("/tokenize", body)["tokens"]
    if theirs != streams.encode(_SAMPLE):
        raise EngineError(
            f"{model or served} here has another tokenizer than the model that {client.url} serves; "
            "give --model the folder or id of that one"
        )
    return streams
