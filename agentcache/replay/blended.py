"""The `agentcache` policy: the engine's own matcher and planner over the entries that would exist."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np

from agentcache.entry import INDEX_DOMAIN, Tokens
from agentcache.learn.runs import runs_to_learn, stride_of
from agentcache.learn.views import View, recognise
from agentcache.match import Matcher
from agentcache.plan import plan_prompt
from agentcache.plan.types import Plan
from agentcache.replay.kinds import Kind
from agentcache.replay.learn import OWN_DOMAIN, Learner
from agentcache.replay.outcome import Mask, Origin, Outcome, Piece
from agentcache.replay.prefix import PageChain
from agentcache.replay.prompt import Prompt
from agentcache.replay.source import Known, Source
from agentcache.replay.tiers import Tiers
from agentcache.settings import EngineSettings

VIEW_TOKENS = 64
"""Computed tokens of tool output that are worth a look."""
VIEW_LINES = 5
"""Lines of the repository shown in a view that make it one to keep warm."""


class Blended:
    """Serves prompts as the engine's scheduler half does, from entries as the warm worker makes them.

    source: warm from the start, in the raw view
    learner: what requests leave behind; with one, views that a trace turns out to use are warmed from the request on
    that showed them. None: the source's entries only
    tiers: finite budgets; without, nothing is ever evicted; on_entry: told the tokens of every entry made
    """

    name = "agentcache"

    def __init__(
        self,
        source: Source | None,
        learner: Learner | None,
        tiers: Tiers | None = None,
        on_entry: Callable[[Tokens], None] = lambda tokens: None,
    ) -> None:
        self._policy = EngineSettings().policy
        self._chain = PageChain()
        self._matcher = Matcher()
        self._code = Matcher()  # the source's entries alone: what is code, whichever entry it is reused from
        self._learner = learner
        self._on_entry = on_entry
        self._tiers = tiers
        self._labels: dict[str, tuple[Origin, str]] = {}
        self._source = source
        self._views = _Views(source) if source is not None else None
        self.saved_by_label: Counter[str] = Counter()
        self.index_tokens = 0
        self.learned_tokens = 0
        self.views: list[str] = []
        for known in source.entries() if source is not None else ():
            self.index_tokens += self._add(known)

    def serve(self, prompt: Prompt) -> Outcome:
        tokens = prompt.tokens
        hit, _ = self._chain.hit(tokens)
        spans = self._matcher.match(tokens, salts=(OWN_DOMAIN, INDEX_DOMAIN), joined=True)
        plan = plan_prompt(tokens, hit, spans, self._policy)
        reused = np.zeros(len(tokens), np.bool_)
        recomputed = np.zeros(len(tokens), np.bool_)
        code = np.zeros(len(tokens), np.bool_)
        for span in self._code.match(tokens, salts=(INDEX_DOMAIN,)):
            code[span.start : span.stop] = True
        reused[:hit] = True
        pieces = [Piece(0, hit, Origin.PREFIX, "prefix hit")] if hit else []
        if plan is not None:
            for span in plan.spans:
                reused[span.start : span.stop] = True
                reused[list(span.holes)] = False
                pieces.append(Piece(span.start, span.stop, *self._labels[span.entry]))
            recomputed[plan.recompute] = True
            recomputed &= reused
            self._count(plan, recomputed)
        return Outcome(reused, recomputed, tuple(pieces), code)

    def answered(self, prompt: Prompt, outcome: Outcome) -> None:
        self._chain.add(np.concatenate([prompt.tokens, prompt.generated]), prompt.request.number)
        if self._learner is None:
            return
        for known in self._learner.learned(prompt, outcome.reused):
            self.learned_tokens += self._add(known)
        if self._source is not None and self._views is not None:
            for view in self._views.shown(prompt, outcome.reused):
                self.views.append(view.name)
                for known in self._source.entries(view):
                    self.index_tokens += self._add(known)

    def _add(self, known: Known) -> int:
        """Make an entry; returns the tokens computed for it, 0 if it was there."""
        info = known.info
        if known.origin is Origin.INDEX:
            self._code.add(info)
        if self._tiers is not None:
            for gone in self._tiers.add(info.id, info.num_tokens):
                self._matcher.remove(gone)
                if gone == info.id:
                    return 0
        before = len(self._matcher)
        self._matcher.add(info, stride_of(info))
        self._on_entry(info.tokens)
        self._labels.setdefault(info.id, (known.origin, known.label))
        return info.num_tokens if len(self._matcher) > before else 0

    def _count(self, plan: Plan, recomputed: Mask) -> None:
        for span in plan.spans:
            saved = span.length - int(recomputed[span.start : span.stop].sum())
            self.saved_by_label[self._labels[span.entry][1]] += saved
        if self._tiers is not None:
            self._tiers.read((span.entry, span.length) for span in plan.spans)


class _Views:
    """Which views of the repository's files a trace shows, learned from what tools and users showed."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._lines: set[str] | None = None
        self._known: set[View] = set()

    def shown(self, prompt: Prompt, reused: Mask) -> Iterator[View]:
        """Views that were not known before and that the prompt's computed tokens are written in."""
        wanted = ~reused & np.isin(prompt.kinds, (Kind.TOOL_OUTPUT, Kind.OTHER))
        if not prompt.text or int(wanted.sum()) < VIEW_TOKENS:
            return
        if self._lines is None:
            self._lines = self._source.lines()
        votes: Counter[View] = Counter()
        ends = np.append(prompt.starts, len(prompt.text))
        for start, stop in runs_to_learn(reused):
            votes += recognise(prompt.text[ends[start] : ends[stop]], self._lines)
        for view, lines in votes.most_common():
            if lines >= VIEW_LINES and view not in self._known:
                self._known.add(view)
                yield view
