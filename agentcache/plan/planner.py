"""From spans to a plan: pure functions, no engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, zip_longest

import numpy as np
import numpy.typing as npt

from agentcache.entry import Tokens
from agentcache.plan.clip import clip
from agentcache.plan.copied import copy_scores
from agentcache.plan.strategies import RecomputePolicy
from agentcache.plan.types import Plan, Positions, Scores, Span

_LOWEST = float(np.finfo(np.float32).min)


def plan_prompt(tokens: Tokens, start: int, spans: Sequence[Span], policy: RecomputePolicy) -> Plan | None:
    """`make_plan` for the prompt `tokens`, int32 [n], and all that can be told from them alone.

    Where the strategy scores by tokens, they are scored and the budget spent; a probe's scores are still to come.
    """
    whole = _whole(len(tokens), spans, policy, None)
    if whole is not None and policy.chosen.scored_by == "tokens":
        whole = top_up(whole, copy_scores(whole, tokens, policy.boundary_tokens), policy.budget or 0.0)
    return None if whole is None else _behind(whole, start, policy)


def make_plan(
    tokens_count: int,
    start: int,
    spans: Sequence[Span],
    policy: RecomputePolicy,
    page_size: int | None = None,
) -> Plan | None:
    """What to do with a prompt of `tokens_count` tokens whose first `start` vLLM already has in its pages.

    spans: ascending, not overlapping, anywhere in the prompt, below `start`, too.
    The plan ends with the last span worth having, before the prompt's last token, which vLLM computes itself
    for its logits; with `page_size`, at a multiple of it, so that only full pages are claimed.
    Recomputed are all positions outside spans and, inside them, what `policy` chooses without scores;
    `top_up` adds the rest. A span at the end of which nothing would be reused is left to the tail, and so is
    a chain of adjoining spans that saves fewer than `policy.min_saved_tokens`: matched tokens less those
    recomputed, less what a strategy with scores may still recompute.
    A tail of at most `policy.tail_tokens` tokens joins the plan, all recomputed: one pass instead of two.
    Everything is decided for the whole prompt and then cut at `start`, so that a prompt means the same K/V
    however much of it is a prefix hit. None if nothing would be reused.
    """
    whole = _whole(tokens_count, spans, policy, page_size)
    return None if whole is None else _behind(whole, start, policy)


def _whole(
    tokens_count: int, spans: Sequence[Span], policy: RecomputePolicy, page_size: int | None
) -> Plan | None:
    """The plan of a prompt that vLLM has nothing of."""
    assert all(a.stop <= b.start for a, b in pairwise(spans)), "spans overlap or are not ascending"
    kept = _worth_having(_saving(clip(spans, 0, tokens_count - 1), policy), policy, page_size)
    if not kept:
        return None
    stop = kept[-1].stop
    if page_size is None and tokens_count - 1 - stop <= policy.tail_tokens:
        stop = tokens_count - 1
    return Plan(0, stop, tuple(kept), np.flatnonzero(_chosen(kept, stop, policy)))


def _behind(whole: Plan, start: int, policy: RecomputePolicy) -> Plan | None:
    """What is left of the plan of a whole prompt behind its first `start` tokens; None if nothing would be reused."""
    if whole.spans[-1].stop <= start:
        return None
    spans = clip(whole.spans, start, whole.stop)
    recompute = whole.recompute[np.searchsorted(whole.recompute, start) :]
    plan = Plan(start, whole.stop, tuple(spans), recompute)
    return plan if policy.chosen.everything or len(reused_positions(plan)) else None


def top_up(plan: Plan, scores: Scores, budget: float) -> Plan:
    """`plan` with the reused positions of the highest scores recomputed, too, as far as the budget goes.

    scores: float32 [plan.stop - plan.start], one for each position of the plan; NaN counts as the lowest, and minus
        infinity means that the position stays as it is
    budget: share of the matched tokens that may be recomputed in total, those the plan already has included
    Of equal scores the lower position comes first. The plan's own choice is never taken back.
    """
    assert scores.shape == (plan.stop - plan.start,), "one score for each position of the plan"
    reused = reused_positions(plan)
    room = allowance(budget, plan.num_matched) - num_recomputed_in_spans(plan)
    if room <= 0 or not len(reused):
        return plan
    key = np.nan_to_num(scores[reused - plan.start], nan=_LOWEST, posinf=np.inf, neginf=-np.inf)
    reused, key = reused[key > -np.inf], key[key > -np.inf]
    best = reused[np.argsort(-key, kind="stable")[:room]]
    return replace(plan, recompute=np.sort(np.concatenate([plan.recompute, best])))


def reused_positions(plan: Plan) -> Positions:
    """Positions whose stored K/V are used: inside spans and not recomputed."""
    inside = [np.arange(span.start, span.stop, dtype=np.int64) for span in plan.spans]
    matched = np.concatenate(inside) if inside else np.empty(0, np.int64)
    return np.setdiff1d(matched, plan.recompute, assume_unique=True)


def num_recomputed_in_spans(plan: Plan) -> int:
    """Tokens that were matched and are computed nevertheless: what the budget counts."""
    return plan.num_matched - len(reused_positions(plan))


def allowance(budget: float, num_matched: int) -> int:
    """Matched tokens that may be recomputed under a budget, rounded down."""
    return int(budget * num_matched + 1e-9)  # 0.07 * 100 is 7, not 6.999


def _saving(spans: list[Span], policy: RecomputePolicy) -> list[Span]:
    """The spans of all chains that save enough. A chain is a run of spans without tokens between them."""
    limit = _boundary_limit(spans, policy)
    kept: list[Span] = []
    chain: list[Span] = []
    for span, following in zip_longest(spans, spans[1:]):
        chain.append(span)
        if following is not None and following.start == span.stop:
            continue
        if _saved(chain, limit, policy) >= policy.min_saved_tokens:
            kept += chain
        chain = []
    return kept


def _saved(chain: Sequence[Span], limit: int, policy: RecomputePolicy) -> int:
    """Tokens of a chain that need not be computed when each boundary is `limit` tokens."""
    if policy.chosen.everything:
        return 0
    matched = sum(span.num_matched for span in chain)
    boundaries = sum(min(limit, span.length) for span in chain if not span.context_stands)
    spendable = allowance(policy.budget or 0, matched) if policy.chosen.scored_by else 0
    return matched - max(boundaries, spendable)


def _worth_having(spans: list[Span], policy: RecomputePolicy, page_size: int | None) -> list[Span]:
    """`spans` without those at the end that reuse nothing; with `page_size`, the last one ends at a page.

    Dropping a span may raise the boundary limit for the others, hence the loop; it ends because spans get
    fewer or shorter each time.
    """
    while spans:
        limit = _boundary_limit(spans, policy)
        kept = list(spans)
        if page_size is not None:
            last = kept.pop()
            kept += clip([last], 0, last.stop - last.stop % page_size)
        while kept and not policy.chosen.everything and _num_reused(kept[-1], limit, policy) <= 0:
            kept.pop()
        if kept == spans:
            break
        spans = kept
    return spans


def _num_reused(last: Span, limit: int, policy: RecomputePolicy) -> int:
    """Tokens reused of a plan's last span when each boundary is `limit` tokens."""
    return last.num_matched - (0 if last.context_stands else limit) - policy.recompute_last


def _chosen(spans: Sequence[Span], stop: int, policy: RecomputePolicy) -> npt.NDArray[np.bool_]:
    """For each position below `stop`, whether the policy recomputes it."""
    chosen = np.ones(stop, np.bool_)
    if policy.chosen.everything:
        return chosen
    limit = _boundary_limit(spans, policy)
    for i, span in enumerate(spans):
        chosen[span.start : span.stop] = False
        if not span.context_stands:
            chosen[span.start : span.start + min(limit, span.length)] = True
        if span.holes:
            chosen[np.array(span.holes)] = True
        if policy.recompute_last and not _continues(span, spans[i + 1] if i + 1 < len(spans) else None):
            chosen[span.stop - 1] = True
    return chosen


def _boundary_limit(spans: Sequence[Span], policy: RecomputePolicy) -> int:
    """The most first tokens of every span, up to `boundary_tokens`, that the boundaries' budget pays for."""
    if policy.chosen.boundary_share == 0:
        return 0
    if policy.budget is None:
        return policy.boundary_tokens
    room = allowance(policy.budget * policy.chosen.boundary_share, sum(span.length for span in spans))
    if policy.recompute_last:
        room -= len(spans)
    lengths = np.array([span.length for span in spans if not span.context_stands], np.int64)
    affordable = (k for k in range(policy.boundary_tokens, 0, -1) if np.minimum(lengths, k).sum() <= room)
    return next(affordable, 0)


def _continues(span: Span, following: Span | None) -> bool:
    """`following` was matched together with `span`: right behind it, in the stream it was computed in."""
    return following is not None and following.start == span.stop and following.context_stands
