"""What a request may ask of its answer: several of them, a form. Blended requests get what exact ones get."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.engine.serving import SERVED, Server

pytestmark = pytest.mark.engine
EVERYTHING = {"strategy": "all", "min_saved_tokens": 0}
SCHEMA = {
    "type": "object",
    "properties": {
        "colour": {"enum": ["red", "green", "blue"]},
        "used": {"type": "boolean"},
    },
    "required": ["colour", "used"],
    "additionalProperties": False,
}


def complete(server: Server, prompt: list[int], wish: dict[str, Any], **more: Any) -> list[str]:
    """The texts of a request's answers. Each has pages of its own."""
    body = {
        "model": SERVED,
        "prompt": prompt,
        "max_tokens": 24,
        "cache_salt": f"generation {sorted(wish.items())} {sorted(more)}",
        "kv_transfer_params": {"agentcache": wish},
        **more,
    }
    answer = server.client.post("/v1/completions", body)
    if wish.get("mode") != "exact":
        counters = answer["kv_transfer_params"]["agentcache"]
        assert counters["fallback"] == ""
        # Of several answers, the later ones may find the first one's pages.
        assert counters["spans"] >= 3 or counters["prefix_hit_tokens"] > 1000
    return [choice["text"] for choice in answer["choices"]]


def test_several_answers(server: Server, prompts: dict[str, list[int]]) -> None:
    sampling = {"n": 3, "temperature": 1.0, "seed": 11}
    exact = complete(server, prompts["shuffled"], {"mode": "exact"}, **sampling)
    assert complete(server, prompts["shuffled"], EVERYTHING, **sampling) == exact
    assert len(set(exact)) > 1
    blended = complete(server, prompts["shuffled"], {"mode": "fast"}, **sampling)
    assert len(blended) == 3


def test_a_json_schema(server: Server, prompts: dict[str, list[int]]) -> None:
    form = {
        "temperature": 0.0,
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}},
    }
    exact = complete(server, prompts["shuffled"], {"mode": "exact"}, **form)
    assert complete(server, prompts["shuffled"], EVERYTHING, **form) == exact
    (blended,) = complete(server, prompts["shuffled"], {"mode": "fast"}, **form)
    free = complete(server, prompts["shuffled"], {"mode": "fast"}, temperature=0.0)
    assert json.loads(blended)["colour"] in ("red", "green", "blue")
    assert not free[0].lstrip().startswith("{"), "without the schema it answers otherwise"
