"""Which reused tokens the answer is likely to copy from, told from the prompt's token ids alone.

A model that continues code copies: what the end of the prompt shows (a question, an opened definition, the lines to
edit) stands elsewhere in it, and what follows there is what it writes next (induction). If that place was computed in
another context, the copy goes wrong: three tokens made nearly all the error of the worst prompts measured
(benchmarks/README.md). So a part of the budget goes to the tokens at and behind such places.

No pass through the model is needed, unlike for a probe's scores.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from agentcache.entry import Tokens
from agentcache.plan.types import Plan, Scores

ASKING_TOKENS = 512
"""Of what stands behind the last span, the last so many ask."""
GRAM = 3
"""Tokens in a row that count as the same place. Ids below 2**21 are packed into one integer."""
BEHIND_TOKENS = 48
"""So many tokens behind such a place may be copied, the next ones most likely."""
_LEAST = 0.2
"""Weight of the last of them; the first has 1."""
COMMON = 4
"""What stands more often than that tells nobody where the answer is copied from."""
_SEAM = 1e-6
"""Weight of a span's first token. It falls with the distance, and spends what places leave of the budget."""


def copy_scores(plan: Plan, tokens: Tokens, boundary_tokens: int) -> Scores:
    """Scores of the positions of `plan` from the prompt `tokens`, int32 [n].

    A place counts more the later in the asking tokens it stands, and the fewer of its kind there are. Behind all places
    come the `boundary_tokens` first tokens of every span. All else, and spans whose context stands, are left alone.
    """
    scores = np.zeros(plan.stop - plan.start, np.float32)
    if not plan.spans:
        return scores
    end = plan.spans[-1].stop
    _add_places(scores[: end - plan.start], tokens[plan.start : end], tokens[end:][-ASKING_TOKENS:])
    for span in plan.spans:
        own = scores[span.start - plan.start : span.stop - plan.start]
        if span.context_stands:
            own[:] = 0.0
        else:
            seam = own[:boundary_tokens]
            seam += _SEAM / np.arange(1, len(seam) + 1, dtype=np.float32)
    scores[scores == 0.0] = -np.inf
    return scores


def _add_places(scores: Scores, shown: Tokens, asking: Tokens) -> None:
    """Add, in place, what each position of `shown` is worth to whoever continues `asking`."""
    if min(len(shown), len(asking)) < GRAM:
        return
    asked = _grams(asking)
    kinds, last = np.unique(asked[::-1], return_index=True)
    late = 1.0 + (len(asked) - 1 - last) / len(asking)
    grams = _grams(shown)
    which = np.searchsorted(kinds, grams)
    which[which == len(kinds)] = 0
    places = np.flatnonzero(kinds[which] == grams)
    times = np.bincount(which[places], minlength=len(kinds))
    places = places[times[which[places]] <= COMMON]
    worth = np.zeros(len(shown), np.float32)
    worth[places] = (late / np.maximum(times, 1))[which[places]]
    ramp = np.linspace(1.0, _LEAST, GRAM + BEHIND_TOKENS, dtype=np.float32)
    scores += np.convolve(worth, ramp)[: len(shown)]


def _grams(tokens: Tokens) -> npt.NDArray[np.int64]:
    """Every run of GRAM tokens as one integer, [n - GRAM + 1]."""
    wide = tokens.astype(np.int64)
    packed = np.zeros(len(wide) - GRAM + 1, np.int64)
    for number in range(GRAM):
        packed = packed << 21 | wide[number : number + len(packed)]
    return packed
