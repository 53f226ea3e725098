"""Made-up answers about code: sentences of a few shapes that name what the code names. Seeded by the code itself."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

_NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9]{2,}")
# fmt: off
_VERBS = (
    "builds", "checks", "collects", "computes", "decodes", "derives", "merges", "orders", "prepares",
    "reads", "resolves", "returns", "stores", "updates", "validates", "wraps",
)
_THINGS = (
    "the final value", "a shared structure", "the internal state", "the caller's input",
    "an ordered mapping", "the pending entries", "a bounded buffer", "the default settings",
    "the remaining items", "a lazy view", "the error context", "the next stage's input",
    "a normalised copy", "the matching record",
)
_LINKS = (
    "First", "Then", "After that", "Next", "In a further step", "Where needed", "Finally", "Meanwhile",
    "Once done",
)
_WHYS = (
    "so that repeated calls agree", "before control returns", "without touching the original",
    "as its callers expect", "unless nothing is left to do", "which keeps the cost low",
    "to keep errors local", "for later lookups",
)
# fmt: on


def names_in(code: str) -> list[str]:
    """Names that occur in code, each once, in order."""
    return list(dict.fromkeys(_NAME.findall(code))) or ["it"]


def sentences(rng: random.Random, names: Sequence[str], words: int) -> str:
    """About `words` words of prose."""
    parts: list[str] = []
    count = 0
    while count < words:
        a, b = rng.choice(names), rng.choice(names)
        sentence = rng.choice(
            (
                f"{rng.choice(_LINKS)} `{a}` {rng.choice(_VERBS)} {rng.choice(_THINGS)} {rng.choice(_WHYS)}.",
                f"{rng.choice(_LINKS)}, it {rng.choice(_VERBS)} {rng.choice(_THINGS)} through `{a}` and `{b}`.",
                f"`{a}` {rng.choice(_VERBS)} {rng.choice(_THINGS)} and {rng.choice(_VERBS)} what `{b}` holds.",
            )
        )
        parts.append(sentence)
        count += len(sentence.split())
    return " ".join(parts)
