"""The words the matcher, the planner and the executor share: span and plan."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.int64]
"""Prompt positions, ascending, without repeats, int64 [n]."""

Scores = npt.NDArray[np.float32]
"""One for each position of a plan, [stop - start]; higher means: recompute it sooner; minus infinity: never."""


@dataclass(frozen=True, slots=True)
class Span:
    """A run of prompt tokens that equals a run of one entry's tokens.

    start: prompt position of its first token
    length: number of tokens, at least 1
    entry: entry id
    offset: index, inside the entry, of its first token
    shift: prompt position minus the position the same token's key was rotated for
    context_stands: what stands to its left in the prompt is what the entry was computed behind: either the
        whole prompt before it (its entry's tokens before `offset` included), or, at offset 0, the span before
        it is the end of its entry's parent and ends where this one begins
    exact: its K/V are those a full prefill would compute (its context stands from position 0 on, shift 0)
    holes: prompt positions inside it, ascending, whose tokens are not the entry's: they are always recomputed
    """

    start: int
    length: int
    entry: str
    offset: int
    shift: int
    context_stands: bool
    exact: bool
    holes: tuple[int, ...] = ()

    @property
    def stop(self) -> int:
        return self.start + self.length

    @property
    def num_matched(self) -> int:
        """Tokens that are the entry's."""
        return self.length - len(self.holes)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do with the prompt positions [start, stop).

        0 ......... start ............................. stop ...... num_tokens
        prefix hit  | spans and recomputed positions    | tail (vLLM prefills it)

    A short tail is part of the recomputed positions; vLLM is left the prompt's last token at least.

    spans: ascending, not overlapping, inside [start, stop)
    recompute: positions to compute by virtual requests: all outside the spans, and boundary tokens in them
    """

    start: int
    stop: int
    spans: tuple[Span, ...]
    recompute: Positions

    @property
    def num_matched(self) -> int:
        """Tokens inside spans that are their entries', recomputed or not."""
        return sum(span.num_matched for span in self.spans)
