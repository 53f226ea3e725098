"""From a model and an amount of text to bytes, seconds and the reuse at which warming pays.

bytes of one token   layers x 2 x KV heads x head size x bytes of a number, as each codec of the store writes it
time to compute one  (2 x weights it passes + attention to half the stream before it) / the machine's speed
time to read one     bytes / the tier's bandwidth
break-even           computing once and reading n times against computing n times: n = c / (c - r); never if r >= c
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from agentcache.capacity.model import ModelShape

CHARACTERS_PER_TOKEN = 3.6
"""Of Python source with tokenizers of about 50,000 to 150,000 tokens: the measured repositories have 3.5 to 4.2."""


@dataclass(frozen=True, slots=True)
class Amount:
    """Text to keep warm.

    tokens: of the text; stored_tokens: of all entries, those of functions alone included
    longest: tokens of the longest stream that is computed front to back
    """

    what: str
    tokens: int
    stored_tokens: int
    longest: int


@dataclass(frozen=True, slots=True)
class Tier:
    """A place for entries. budget_bytes: None where none was given"""

    name: str
    bytes_per_s: float
    budget_bytes: int | None = None


def bytes_by_codec(shape: ModelShape) -> dict[str, float]:
    """Bytes a token, by the store's codecs; those that do not fit a latent cache are left out."""
    import torch

    from agentcache.store.codecs import CODECS
    from agentcache.store.layout import EntryLayout

    dtype = torch.float32 if shape.value_bytes == 4 else torch.bfloat16
    if shape.latent:
        return {"raw": float(shape.bytes_per_token())}
    layout = EntryLayout(2, shape.layers, shape.kv_heads, shape.head_size, dtype)
    tokens = 1024  # a whole number of every codec's groups
    return {
        name: sum(part.nbytes for part in codec.parts(layout, tokens)) / tokens
        for name, codec in CODECS.items()
    }


def seconds_per_token(shape: ModelShape, flops_per_s: float, stream_tokens: int) -> float:
    """Of prefill, on average over a stream."""
    weights = 2 * shape.active_parameters
    attention = 4 * shape.layers * shape.heads * shape.head_size * stream_tokens / 2
    return (weights + attention) / flops_per_s


def plan(
    shape: ModelShape, amount: Amount, flops_per_s: float, tiers: Iterable[Tier], codec: str = "raw"
) -> dict[str, Any]:
    """All figures. `codec` is how the tiers' break-even and fit are counted."""
    by_codec = bytes_by_codec(shape)
    compute_s = seconds_per_token(shape, flops_per_s, amount.longest)
    token_bytes = by_codec[codec]
    return {
        "model": shape.name,
        "what": amount.what,
        "tokens": amount.tokens,
        "stored_tokens": amount.stored_tokens,
        "bytes_per_token": by_codec,
        "bytes": {name: round(size * amount.stored_tokens) for name, size in by_codec.items()},
        "flops_per_s": flops_per_s,
        "prefill_tokens_per_s": round(1 / compute_s, 1),
        "warm_seconds": round(amount.stored_tokens * compute_s, 1),
        "codec": codec,
        "tiers": {tier.name: _tier(tier, amount, token_bytes, compute_s) for tier in tiers},
    }


def _tier(tier: Tier, amount: Amount, token_bytes: float, compute_s: float) -> dict[str, Any]:
    read_s = token_bytes / tier.bytes_per_s
    figures: dict[str, Any] = {
        "read_tokens_per_s": round(1 / read_s, 1),
        "speed_over_prefill": round(compute_s / read_s, 2),
        "break_even_uses": math.ceil(compute_s / (compute_s - read_s)) if read_s < compute_s else None,
    }
    if tier.budget_bytes is not None:
        stored = tier.budget_bytes / token_bytes
        tokens = int(stored * amount.tokens / max(1, amount.stored_tokens))
        figures |= {
            "budget_bytes": tier.budget_bytes,
            "fits": token_bytes * amount.stored_tokens <= tier.budget_bytes,
            "largest_tokens": tokens,
            "largest_source_bytes": int(tokens * CHARACTERS_PER_TOKEN),
        }
    return figures


def machine_flops(repeats: int = 10) -> float:
    """Floating-point operations a second that a prefill reaches on this CPU, roughly.

    A quarter of the fastest bfloat16 matrix multiplication: what vLLM reached with models of 135M and 500M weights.
    """
    import time

    import torch

    size = 1024
    a = torch.ones(size, size, dtype=torch.bfloat16)
    fastest = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        torch.mm(a, a)
        fastest = min(fastest, time.perf_counter() - began)
    return 0.25 * 2 * size**3 / fastest
