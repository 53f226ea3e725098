"""LMCache's published rules: a grid of 256-token chunks, found as a prefix, then by content at any offset.

Source: LMCache 0.5, `lmcache/v1/multiprocess/modules/blend` (the multi-process blend engine). Prompts are stored as
full chunks on the grid from position 0. The prefix's chunks are looked up first; behind it every registered chunk is
searched for at every offset. A prompt's first chunk is left to the prefix lookup and never registered; a stored chunk
is used once a prompt. Blending recomputes 15 % of what it reuses unless told otherwise.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from agentcache.entry import Tokens
from agentcache.replay.hashes import HashSet, window_hashes
from agentcache.replay.outcome import Outcome
from agentcache.replay.prefix import PageChain
from agentcache.replay.prompt import Prompt
from agentcache.replay.windows import covered

CHUNK_TOKENS = 256
RECOMPUTE_SHARE = 0.15


class ChunkGrid:
    """The `chunk256` policy, without limits of memory."""

    name = "chunk256"

    def __init__(self) -> None:
        self._prefix = PageChain(CHUNK_TOKENS)
        self._chunks = HashSet()

    def serve(self, prompt: Prompt) -> Outcome:
        hit, _ = self._prefix.hit(prompt.tokens)
        blended = covered(self._found(prompt.tokens, hit), CHUNK_TOKENS, len(prompt))
        blended[:hit] = False
        recomputed = np.zeros(len(prompt), np.bool_)
        where = np.flatnonzero(blended)
        share = np.arange(len(where)) * RECOMPUTE_SHARE
        recomputed[where[np.floor(share + RECOMPUTE_SHARE) > np.floor(share)]] = True
        blended[:hit] = True
        return Outcome(blended, recomputed)

    def answered(self, prompt: Prompt, outcome: Outcome) -> None:
        self._prefix.add(prompt.tokens, prompt.request.number)
        self._chunks.add(window_hashes(prompt.tokens, CHUNK_TOKENS)[CHUNK_TOKENS::CHUNK_TOKENS])

    def _found(self, tokens: Tokens, hit: int) -> npt.NDArray[np.int64]:
        """Where stored chunks stand behind the prefix, each of them once."""
        hashes = window_hashes(tokens[hit:], CHUNK_TOKENS)
        where = np.flatnonzero(self._chunks.has(hashes))
        _, first = np.unique(hashes[where], return_index=True)
        starts: npt.NDArray[np.int64] = np.sort(where[first]) + hit
        # the last token is vLLM's own to compute
        return starts[starts + CHUNK_TOKENS < len(tokens)]
