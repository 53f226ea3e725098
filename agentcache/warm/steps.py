"""Cutting a job into requests that each compute a few tokens, so that nobody waits long behind one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

DEFAULT_PAGE_SIZE = 128


@dataclass(frozen=True, slots=True)
class Step:
    """One request: the first `stop` tokens of a job, of which `num_new` are not stored yet.

    cuts: where entries begin and end, two at least. The engine keeps the entries that end by `stop`; if none does,
        it keeps the pages, in its prefix cache, and the next step goes on from there.
    """

    stop: int
    num_new: int
    cuts: tuple[int, ...]


def next_step(
    cuts: Sequence[int],
    missing: Sequence[bool],
    reached: int,
    max_new: int,
    page_size: int = DEFAULT_PAGE_SIZE,
) -> Step | None:
    """What to compute next of a job; None if nothing is missing.

    missing: for each interval between two cuts whether its entry is still to be computed
    reached: where the last step of this job ended, 0 before the first
    max_new: most tokens the engine computes for it. A step ends with an entry; where the next one alone is longer, it
        ends with a page inside that entry, since the engine keeps whole pages only.
    """
    assert max_new > 0
    assert len(missing) == len(cuts) - 1
    begun: int | None = None
    last, num_new = 0, 0
    for (start, stop), is_missing in zip(pairwise(cuts), missing, strict=True):
        if not is_missing:
            continue
        if begun is None:
            begun = max(start, reached)
        if stop - begun > max_new:
            if last:
                break
            end = (begun + max_new) // page_size * page_size
            end = end if end > begun else begun + max_new
            return Step(end, end - begun, _until(cuts, end))
        last, num_new = stop, num_new + stop - max(start, begun)
    return Step(last, num_new, _until(cuts, last)) if last else None


def _until(cuts: Sequence[int], stop: int) -> tuple[int, ...]:
    within = tuple(cut for cut in cuts if cut <= stop)
    return within if len(within) > 1 else tuple(cuts[:2])
