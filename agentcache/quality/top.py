"""Comparing what a blended prompt predicts with what a full prefill predicts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


def top_kl(reference: Mapping[str, float], other: Mapping[str, float]) -> float:
    """KL(reference || other) in nats from two lists of top logprobs, token to logprob.

    A token that `other` does not list has at most the smallest probability it lists, and that bound is used; all
    tokens that the reference does not list count as one outcome. So this is a slight underestimate of the true KL,
    exact when both list the same tokens and the tails have the same shape.
    """
    bound = min(other.values())
    total = rest_p = rest_q = 0.0
    for token, logp in reference.items():
        logq = other.get(token, bound)
        total += math.exp(logp) * (logp - logq)
        rest_p += math.exp(logp)
        rest_q += math.exp(logq)
    left_p, left_q = max(0.0, 1.0 - rest_p), max(1e-9, 1.0 - rest_q)
    if left_p > 1e-9:
        total += left_p * math.log(left_p / left_q)
    return max(0.0, total)


def top_logprobs(content: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The first generated token's top logprobs from an OpenAI chat `logprobs.content` list: token to logprob.

    Tokens that print alike are told apart by their bytes.
    """
    return {
        repr(bytes(entry["bytes"])) if entry.get("bytes") else entry["token"]: entry["logprob"]
        for entry in content[0]["top_logprobs"]
    }
