"""How the positions to recompute are chosen: named strategies, and the policy that uses one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to choose, inside spans, the tokens to recompute. What lies between spans always is.

    boundary_share: share of the budget for first tokens of spans whose context does not stand; 0 for none
    scored_by: who scores the reused positions, for `top_up` to spend the rest of the budget on them: the engine with a
        "probe", the planner by the prompt's "tokens" (`copy_scores`), or "" for nobody
    everything: every position is recomputed (equals full prefill; for self-tests)
    """

    name: str
    boundary_share: float = 0.0
    scored_by: Literal["", "probe", "tokens"] = ""
    everything: bool = False


STRATEGIES: Final = {
    strategy.name: strategy
    for strategy in (
        Strategy("none"),
        Strategy("all", everything=True),
        Strategy("boundary", boundary_share=1.0),
        Strategy("boundary+copy", boundary_share=0.6, scored_by="tokens"),
        Strategy("boundary+tail", boundary_share=0.5, scored_by="probe"),
        Strategy("deviation", scored_by="probe"),
    )
}


@dataclass(frozen=True, slots=True)
class RecomputePolicy:
    """What a request asks of the planner.

    strategy: a name in `STRATEGIES`
    boundary_tokens: at most this many first tokens of a span whose context does not stand
    budget: share of the matched tokens that may be recomputed, 0 to 1; None leaves boundaries unlimited, and
        is refused for strategies that spend it on scores
    min_saved_tokens: a chain of adjoining spans that spares fewer tokens is not worth reusing
    tail_tokens: a tail of at most so many tokens is computed with the plan instead of by vLLM's own forward
    recompute_last: recompute the last token of a span, too, where what follows was not matched with it. Not
        needed for correctness: a token is reused only where its id is the stored one. Off by default.

    Raises ValueError for values out of range.
    """

    strategy: str = "boundary"
    boundary_tokens: int = 16
    budget: float | None = None
    min_saved_tokens: int = 32
    recompute_last: bool = False
    tail_tokens: int = 0

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise ValueError(f"unknown strategy {self.strategy!r}: one of {', '.join(STRATEGIES)}")
        if min(self.boundary_tokens, self.min_saved_tokens, self.tail_tokens) < 0:
            raise ValueError("boundary_tokens, min_saved_tokens and tail_tokens are not negative")
        if self.budget is not None and not 0 <= self.budget <= 1:
            raise ValueError(f"budget is a share from 0 to 1, not {self.budget}")
        if self.budget is None and STRATEGIES[self.strategy].scored_by:
            raise ValueError(f"strategy {self.strategy!r} needs a budget")

    @property
    def chosen(self) -> Strategy:
        return STRATEGIES[self.strategy]
