"""What an entry is: the stored K/V of one block's tokens for one model in one context.

An entry is immutable and addressed by what it was computed from: the model, the salt, every token to its
left in the stream it was computed in (its context) and its own tokens. Two files, branches or machines that
hold the same block behind the same text share one entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from blake3 import blake3

Tokens = npt.NDArray[np.int32]
"""Token ids, shape [n], int32, C-contiguous."""

_ENTRY_DOMAIN = b"agentcache entry v1\0"
_CONTEXT_DOMAIN = b"agentcache context v1\0"


def as_tokens(ids: Any) -> Tokens:
    """`ids` (any sequence of integers) as a contiguous int32 array."""
    return np.ascontiguousarray(ids, dtype=np.int32)


def context_digest(left: Tokens) -> str:
    """Identity of the tokens to the left of an entry (64 hex digits); `left` may be empty."""
    return blake3(_CONTEXT_DOMAIN + left.astype("<i4").tobytes()).hexdigest()


def entry_id(model: str, salt: str, context: str, tokens: Tokens) -> str:
    """Content address of an entry (64 hex digits). `model` is the engine's fingerprint, `context` a digest."""
    digest = blake3(_ENTRY_DOMAIN)
    for part in (model, salt, context):
        raw = part.encode()
        digest.update(len(raw).to_bytes(4, "little") + raw)
    digest.update(tokens.astype("<i4").tobytes())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True, eq=False)
class EntryInfo:
    """Everything about an entry but its K/V.

    id: content address, 64 hex digits (`entry_id`)
    salt: isolation domain: who may see it (agentcache.plugin.request)
    context: `context_digest` of the tokens it was computed behind
    parent: id of the entry that ended where this one begins, in the stream both were computed in; "" if none
    position: position its first token had when its keys were rotated
    tokens: its token ids, int32 [n]
    """

    id: str
    salt: str
    context: str
    parent: str
    position: int
    tokens: Tokens

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)


INDEX_DOMAIN = "index"
"""Isolation domain of the indexed repositories' entries, which every request may see."""


def own_domain(salt: str) -> str:
    """The domain of requests with this `cache_salt`; no salt can name the index's."""
    return f"salt:{salt}"


def entries_of_stream(model: str, salt: str, tokens: Tokens, cuts: Sequence[int]) -> list[EntryInfo]:
    """The entries that come of computing `tokens` front to back and cutting at `cuts` (ascending offsets).

    Every interval between two cuts is one entry, computed behind all tokens before it; each is the parent of the next.
    """
    infos: list[EntryInfo] = []
    parent, left, hashed = "", blake3(_CONTEXT_DOMAIN), 0
    raw = tokens.astype("<i4").tobytes()
    for start, stop in pairwise(cuts):
        left.update(raw[4 * hashed : 4 * start])
        own, context, hashed = tokens[start:stop].copy(), left.hexdigest(), start
        identity = entry_id(model, salt, context, own)
        infos.append(EntryInfo(identity, salt, context, parent, start, own))
        parent = identity
    return infos
