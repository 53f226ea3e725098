"""What broke each prefix: the text at which a prompt stopped being what an earlier one was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agentcache.observe.difference import SHOWN, difference
from agentcache.replay.kinds import LABELS, Kind
from agentcache.replay.prefix import Break
from agentcache.replay.replay import Served

_LOOKED_AT = 1000
"""Characters in front of a break: its line is in them."""


@dataclass(frozen=True, slots=True)
class Broken:
    """One break in words.

    kind: of text; cause: what kind of thing differs (`agentcache.observe.difference`)
    line: the beginning of the line it is in; now, was: what the two prompts say there
    lost_tokens: of the prompt behind the pages that hit
    """

    request: int
    other: int
    at_token: int
    hit_tokens: int
    lost_tokens: int
    kind: str
    cause: str
    line: str
    now: str
    was: str


def broken(breaks: Sequence[Break], served: Sequence[Served]) -> list[Broken]:
    """Every break, in order: no first requests, no conversations that went on, no prompts that were repeated."""
    prompts = {one.prompt.request.number: one for one in served}
    found = []
    for one in breaks:
        own, other = prompts[one.request].prompt, prompts.get(one.other)
        if other is None or one.grown or one.common_tokens >= len(own) or not own.text:
            continue
        at = int(own.starts[one.common_tokens])
        kind = Kind(int(prompts[one.request].kinds[one.common_tokens]))
        # texts are equal up to here, so the same place in the other one is where it went on otherwise
        words = difference(
            own.text[max(0, at - _LOOKED_AT) : at],
            own.text[at : at + 2 * SHOWN],
            other.prompt.text[at : at + 2 * SHOWN],
        )
        found.append(
            Broken(
                one.request,
                one.other,
                one.common_tokens,
                one.hit_tokens,
                len(own) - one.hit_tokens,
                LABELS[kind],
                words.cause,
                words.line,
                words.now,
                words.was or "(its end)",
            )
        )
    return found


@dataclass(slots=True)
class _Group:
    requests: int = 0
    lost_tokens: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    causes: Counter[str] = field(default_factory=Counter)
    examples: list[Broken] = field(default_factory=list)


def grouped(found: Sequence[Broken], limit: int = 10) -> list[dict[str, Any]]:
    """Breaks at the same place of a text together, those that cost most first."""
    groups: dict[str, _Group] = {}
    for one in found:
        group = groups.setdefault(one.line[:32], _Group())
        group.requests += 1
        group.lost_tokens += one.lost_tokens
        group.kinds[one.kind] += 1
        group.causes[one.cause] += 1
        if len(group.examples) < 3:
            group.examples.append(one)
    ranked = sorted(groups.values(), key=lambda group: -group.lost_tokens)
    return [
        {
            "line": group.examples[0].line,
            "kind": group.kinds.most_common(1)[0][0],
            "cause": group.causes.most_common(1)[0][0],
            "requests": group.requests,
            "lost_tokens": group.lost_tokens,
            "examples": [{"request": e.request, "now": e.now, "was": e.was} for e in group.examples],
        }
        for group in ranked[:limit]
    ]
