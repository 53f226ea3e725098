"""Cut spans to a range of prompt positions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from agentcache.plan.types import Span


def clip(spans: Iterable[Span], start: int, stop: int) -> list[Span]:
    """The parts of `spans` inside [start, stop), in the same order; spans without any are left out.

    A span cut at its left moves its offset and keeps its shift. `context_stands` and `exact` keep their
    value: whoever cuts there (a prefix hit) holds the same tokens in the pages to the left, so what stood
    there stands.
    """
    clipped = []
    for span in spans:
        left, right = max(span.start, start), min(span.stop, stop)
        if left >= right:
            continue
        if left == span.start and right == span.stop:
            clipped.append(span)
        else:
            offset = span.offset + left - span.start
            holes = tuple(hole for hole in span.holes if left <= hole < right)
            clipped.append(replace(span, start=left, length=right - left, offset=offset, holes=holes))
    return clipped
