"""What a policy makes of one prompt, and what all prompts come to."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from agentcache.replay.kinds import LABELS, Kind, Kinds
from agentcache.replay.prompt import Prompt

Mask = npt.NDArray[np.bool_]
"""One truth value a prompt token."""


class Origin(Enum):
    """Where reused K/V comes from."""

    PREFIX = "prefix hit"
    INDEX = "index"
    LEARNED = "learned"
    ANSWER = "answer"


class Piece(NamedTuple):
    """A run [start, stop) of reused tokens, where its K/V comes from, and what to call that."""

    start: int
    stop: int
    origin: Origin
    label: str


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """reused: tokens whose K/V was there; recomputed: those of them that are computed again nevertheless
    code: tokens that stand in the index, reused from there or not; None if the policy knows none
    """

    reused: Mask
    recomputed: Mask
    pieces: tuple[Piece, ...] = ()
    code: Mask | None = None


class Policy(Protocol):
    """One way to reuse K/V. Causal: `serve` sees what `answered` was told before, and the index, and no more."""

    name: str

    def serve(self, prompt: Prompt) -> Outcome: ...

    def answered(self, prompt: Prompt, outcome: Outcome) -> None: ...


@dataclass(slots=True)
class Tally:
    """Counts of tokens, all and by kind; `reused` contains `recomputed`."""

    requests: int = 0
    prompt: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(Kind), np.int64))
    reused: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(Kind), np.int64))
    recomputed: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(Kind), np.int64))

    def add(self, kinds: Kinds, outcome: Outcome) -> None:
        self.requests += 1
        self.prompt += np.bincount(kinds, minlength=len(Kind))
        self.reused += np.bincount(kinds[outcome.reused], minlength=len(Kind))
        self.recomputed += np.bincount(kinds[outcome.recomputed], minlength=len(Kind))

    def as_json(self) -> dict[str, Any]:
        """The keys of `policies` in `agentcache replay --json`; rates are shares of all prompt tokens."""
        prompt, reused, recomputed = (
            int(counts.sum()) for counts in (self.prompt, self.reused, self.recomputed)
        )
        return {
            "requests": self.requests,
            "prompt_tokens": prompt,
            "reused_tokens": reused,
            "recomputed_tokens": recomputed,
            "computed_tokens": prompt - reused,
            "hit_rate": _share(reused, prompt),
            "recomputed_rate": _share(recomputed, prompt),
            "saved_rate": _share(reused - recomputed, prompt),
            "by_kind": {
                LABELS[kind]: {
                    "prompt_tokens": int(self.prompt[kind]),
                    "reused_tokens": int(self.reused[kind]),
                    "recomputed_tokens": int(self.recomputed[kind]),
                    "hit_rate": _share(int(self.reused[kind]), int(self.prompt[kind])),
                }
                for kind in Kind
            },
        }


def _share(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0


DEFINITIONS = {
    "reused": "prompt tokens whose K/V was there before the request: a prefix hit, or inside a span of the plan",
    "recomputed": "reused tokens that are computed again at the seams: part of the reused ones, shown apart",
    "computed": "prompt tokens that were not reused: prompt = reused + computed",
    "hit rate": "reused tokens over all prompt tokens of all requests; nothing is rounded to pages but what a policy"
    " itself reuses by the page",
    "saved": "reused less recomputed tokens: what prefill does not do",
    "causal": "a token counts as reused only if it was indexed, or stood in an earlier request, or was generated"
    " before; requests are served one after the other",
    "prefix": "vLLM's prefix caching: pages of 16 tokens, each found by its own and all earlier tokens; no limit of"
    " capacity; generated tokens are cached too; the last token is always computed",
    "chunk256": "LMCache's published rules: prompts are stored in chunks of 256 tokens from position 0; the prefix's"
    " chunks are reused as they stand, behind it a stored chunk (never a prompt's first) wherever its 256 tokens"
    " stand, each once; 15 % of what is reused behind the prefix is recomputed (CacheBlend's default, taken evenly)",
    "agentcache": "a prefix hit as above, then the spans that the engine's own matcher and planner choose; entries"
    " are the index's, generated answers, and learned spans: what was computed in earlier requests, by itself",
    "upper": "every token inside a window of 16 tokens that stood in the index, an earlier prompt or answer: what"
    " text alone would allow",
}
"""Printed with every report."""
