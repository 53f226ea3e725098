"""What an edit makes necessary: the changed pieces, each behind what is warm already.

A changed piece is computed behind the text before it as that was when the file was last warm from end to end. With
one edit that is exactly what stands before it now. With several it is the older text, whose entries exist: nothing
between two edits is computed, and it costs what blocks behind an edit cost anyway until they are refreshed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import pairwise

import numpy as np

from agentcache.context import Stream
from agentcache.entry import Tokens


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """A run of changed intervals with what it is computed behind: `tokens` and `cuts` as in a job.

    covers: for each interval the ids of the changed blocks in it
    """

    tokens: Tokens
    cuts: tuple[int, ...]
    covers: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class _Interval:
    stream: Stream
    number: int
    key: bytes


def changed_pieces(old: Sequence[Stream], new: Sequence[Stream], max_tokens: int) -> list[Piece]:
    """The pieces of `new`, the windows of a file, that are not in `old`, its windows when it was warm.

    max_tokens: longest stream the engine takes; a piece that does not fit behind the old text stands behind the new
    """
    before, after = _intervals(old), _intervals(new)
    twin = _twins([one.key for one in before], [one.key for one in after])
    pieces: list[Piece] = []
    at = 0
    while at < len(after):
        if at in twin:
            at += 1
            continue
        end = at + 1
        while end < len(after) and end not in twin and after[end].stream is after[at].stream:
            end += 1
        pieces.append(_piece(before, after, at, end, twin, max_tokens))
        at = end
    return pieces


def _piece(
    before: list[_Interval],
    after: list[_Interval],
    at: int,
    end: int,
    twin: dict[int, int],
    max_tokens: int,
) -> Piece:
    stream, first, last = after[at].stream, after[at].number, after[end - 1].number
    changed = stream.covers[first : last + 1]
    own = stream.tokens[stream.cuts[first] : stream.cuts[last + 1]]
    if first > 0:
        context = before[twin[at - 1]]
        left = context.stream.cuts[: context.number + 2]
        if left[-1] + len(own) <= max_tokens:
            shift = left[-1] - stream.cuts[first]
            cuts = (*left, *(cut + shift for cut in stream.cuts[first + 1 : last + 2]))
            tokens = np.concatenate([context.stream.tokens[: left[-1]], own])
            return Piece(tokens, cuts, ((),) * (len(left) - 1) + changed)
    return Piece(stream.tokens[: stream.cuts[last + 1]], stream.cuts[: last + 2], ((),) * first + changed)


def _intervals(streams: Sequence[Stream]) -> list[_Interval]:
    return [
        _Interval(stream, number, stream.tokens[start:stop].tobytes())
        for stream in streams
        for number, (start, stop) in enumerate(pairwise(stream.cuts))
    ]


def _twins(before: list[bytes], after: list[bytes]) -> dict[int, int]:
    """Number of each unchanged interval in `after` to its number in `before`, both in order."""
    numbers: dict[bytes, int] = {}
    a = [numbers.setdefault(key, len(numbers)) for key in before]
    b = [numbers.setdefault(key, len(numbers)) for key in after]
    matches = SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks()
    return {match.b + step: match.a + step for match in matches for step in range(match.size)}
