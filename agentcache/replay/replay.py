"""A trace through all policies, one request after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from agentcache.match import warm_up
from agentcache.replay import hashes
from agentcache.replay.blended import Blended
from agentcache.replay.chunks import ChunkGrid
from agentcache.replay.kinds import Kind, Kinds
from agentcache.replay.learn import Learner
from agentcache.replay.outcome import Mask, Outcome, Policy, Tally
from agentcache.replay.prefix import Prefix
from agentcache.replay.prompt import Prompt, Prompter
from agentcache.replay.source import Source
from agentcache.replay.tiers import Tiers
from agentcache.replay.trace import Request
from agentcache.replay.windows import UpperBound


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """One request, served by every policy. kinds: with code told from other tool output."""

    prompt: Prompt
    kinds: Kinds
    outcomes: dict[str, Outcome]


@dataclass(slots=True)
class Missed:
    """Tokens of one trace that prefix caching misses, and those of them that agentcache reuses."""

    tokens: int = 0
    reused: int = 0


@dataclass(slots=True)
class Run:
    """All that a replay found. seconds: templates, tokens and policies; the index was there before."""

    served: list[Served] = field(default_factory=list)
    tallies: dict[str, Tally] = field(default_factory=dict)
    by_trace: dict[str, dict[str, Tally]] = field(default_factory=dict)
    missed: dict[str, Missed] = field(default_factory=dict)
    seconds: float = 0.0
    index_seconds: float = 0.0
    prefix: Prefix = field(default_factory=Prefix)
    blended: Blended | None = None
    tiers: Tiers | None = None


def replay(
    requests: Sequence[Request],
    folder: Path,
    source: Source | None = None,
    tiers: Tiers | None = None,
    learn: bool = True,
    on_request: Callable[[int], None] | None = None,
) -> Run:
    """Serve `requests` in order. folder: of the model whose tokenizer and template are used.

    learn: whether views and learned spans become entries; on_request: told how many are done
    Raises UsageError and ModelError.
    """
    run = Run(tiers=tiers)
    began = time.perf_counter()
    prompter = Prompter(folder)
    upper = UpperBound()
    warm_up()
    hashes.warm_up()
    run.blended = Blended(source, Learner(prompter.encode) if learn else None, tiers, upper.know)
    run.index_seconds = time.perf_counter() - began
    began = time.perf_counter()
    policies: list[Policy] = [run.prefix, ChunkGrid(), run.blended, upper]
    run.tallies = {policy.name: Tally() for policy in policies}
    for prompt in prompter.prompts(requests):
        outcomes = {policy.name: policy.serve(prompt) for policy in policies}
        kinds = _with_code(prompt, outcomes["agentcache"].code)
        for policy in policies:
            policy.answered(prompt, outcomes[policy.name])
        _count(run, prompt, kinds, outcomes)
        run.served.append(Served(prompt, kinds, outcomes))
        if on_request is not None:
            on_request(len(run.served))
    run.seconds = time.perf_counter() - began
    return run


def _count(run: Run, prompt: Prompt, kinds: Kinds, outcomes: dict[str, Outcome]) -> None:
    source = prompt.request.source
    of_trace = run.by_trace.setdefault(source, {name: Tally() for name in outcomes})
    for name, outcome in outcomes.items():
        run.tallies[name].add(kinds, outcome)
        of_trace[name].add(kinds, outcome)
    missed = run.missed.setdefault(source, Missed())
    cold = ~outcomes["prefix"].reused
    missed.tokens += int(cold.sum())
    missed.reused += int((cold & outcomes["agentcache"].reused).sum())


def _with_code(prompt: Prompt, code: Mask | None) -> Kinds:
    """`prompt.kinds`, with text of the index told from what else tools returned and users wrote."""
    if code is None or not code.any():
        return prompt.kinds
    kinds = prompt.kinds.copy()
    kinds[code & np.isin(kinds, (Kind.TOOL_OUTPUT, Kind.NAMES))] = Kind.REFERENCED_CODE
    kinds[code & (kinds == Kind.OTHER)] = Kind.OWN_CODE
    return kinds
