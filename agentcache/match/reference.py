"""The slow, obvious matcher. It says what a match is; `matcher.py` must agree with it span for span.

The prompt is walked from left to right. At each position not yet in a span, in this order:

1. **Child.** The span before ends here and at its entry's end: the entries that followed that entry in its
   stream are compared with the prompt from here. One fits if all of it, or MIN_SPAN tokens of it, match.
   The longest that fits is taken, whatever its length, without looking further.
2. **Window.** Entries with a fingerprint of these MIN_SPAN tokens are extended both ways, never into the span
   before. Taken is one whose left context stands, the longest of them. If none stands, the longest one; but
   among those less than MIN_SPAN tokens shorter first one that continues a file behind a hole, then one
   computed behind nothing (DESIGN 1.8).

Equals are told apart by the order of `salts`, then by entry id, then by offset. A span taken by its window

3. **settles the seam** with the spans it touches, if it could reach up to OVERLAP tokens into them: those it
   covers whole and whose context does not stand are dropped; one that stops inside its entry gives up its
   last tokens if the new span then starts at its entry's first one and MIN_SPAN tokens are left;
4. **chains backwards**: before its entry's first token, its parent is compared with the prompt leftwards,
   and is taken if all of it, or MIN_SPAN tokens of it, match; then the parent's parent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentcache.entry import EntryInfo, Tokens, context_digest
from agentcache.match.rules import (
    EMPTY_CONTEXT,
    MAX_ANCESTORS,
    MAX_CHILDREN,
    MAX_HOLE,
    MIN_SPAN,
    OVERLAP,
    RECENT_SPANS,
    TRIES,
)
from agentcache.plan.clip import clip
from agentcache.plan.types import Span


def window_offsets(num_tokens: int, stride: int) -> list[int]:
    """Offsets of an entry's fingerprints: every `stride` tokens, and the last window; none if shorter."""
    last = num_tokens - MIN_SPAN
    return sorted({*range(0, last, stride), last}) if last >= 0 else []


class ReferenceMatcher:
    """Same contract as `Matcher`, without its speed."""

    def __init__(self) -> None:
        self._entries: dict[str, EntryInfo] = {}
        self._strides: dict[str, int] = {}
        # (salt, window) -> [(id, offset)]: entries behind something at the front, behind nothing at the back
        self._windows: dict[tuple[str, bytes], list[tuple[str, int]]] = {}
        self._children: dict[str, list[str]] = {}  # newest first, present ones only
        self._parent: dict[str, str] = {}  # outlives a removed entry while something descends from it

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def num_fingerprints(self) -> int:
        return sum(len(same) for same in self._windows.values())

    def add(self, info: EntryInfo, stride: int = MIN_SPAN) -> None:
        """See `Matcher.add`."""
        if not info.num_tokens:
            raise ValueError("an entry holds at least one token")
        if info.id in self._entries:
            return
        self._entries[info.id] = info
        self._strides[info.id] = stride
        self._parent.pop(info.id, None)
        if info.parent:
            self._parent[info.id] = info.parent
            self._children.setdefault(info.parent, []).insert(0, info.id)
        # in descending order, so that of an entry's equal windows the first is newest: it extends furthest
        for offset in reversed(window_offsets(info.num_tokens, stride)):
            window = info.tokens[offset : offset + MIN_SPAN].tobytes()
            same = self._windows.setdefault((info.salt, window), [])
            same.insert(len(same) if info.context == EMPTY_CONTEXT else 0, (info.id, offset))

    def remove(self, entry_id: str) -> None:
        """Forget an entry; nothing happens if it is absent."""
        info = self._entries.pop(entry_id, None)
        if info is None:
            return
        for offset in window_offsets(info.num_tokens, self._strides.pop(entry_id)):
            key = info.salt, info.tokens[offset : offset + MIN_SPAN].tobytes()
            self._windows[key].remove((entry_id, offset))
            if not self._windows[key]:
                del self._windows[key]
        if info.parent:
            self._children[info.parent].remove(entry_id)
        while dead := set(self._parent) - set(self._entries) - set(self._parent.values()):
            for one in dead:
                del self._parent[one]

    def match(self, tokens: Tokens, *, salts: Sequence[str] = ("",), start: int = 0) -> list[Span]:
        """See `Matcher.match`."""
        return clip(_Walk(self, tokens, salts).run(), start, len(tokens))


def _equal(ours: Tokens, theirs: Tokens) -> int:
    """Length of the common head of two equally long runs of tokens."""
    differs = ours != theirs
    return int(differs.argmax()) if differs.any() else len(ours)


@dataclass(frozen=True, slots=True)
class _Hit:
    """A candidate: `entry` matches the prompt's [start, stop) from its token `offset` on."""

    entry: EntryInfo
    start: int
    stop: int
    offset: int
    salt: int
    stands: bool

    @property
    def length(self) -> int:
        return self.stop - self.start


class _Walk:
    """One prompt's way from left to right."""

    def __init__(self, matcher: ReferenceMatcher, tokens: Tokens, salts: Sequence[str]) -> None:
        self.m = matcher
        self.tokens = tokens
        self.salts = list(dict.fromkeys(salts))
        self.spans: list[Span] = []

    def run(self) -> list[Span]:
        here = 0
        while here < len(self.tokens):
            if (child := self.child(here)) is not None:
                self.push(child.entry, child.start, child.offset, child.length)
            elif (hit := self.window(here)) is not None:
                self.take(hit)
            else:
                here += 1
                continue
            here = self.spans[-1].stop
        return self.spans

    # where things stand

    @property
    def floor(self) -> int:
        return self.spans[-1].stop if self.spans else 0

    def ahead(self, entry: EntryInfo, offset: int, start: int) -> int:
        """How many tokens of `entry` from `offset` on equal the prompt's from `start` on."""
        limit = min(entry.num_tokens - offset, len(self.tokens) - start)
        return _equal(entry.tokens[offset : offset + limit], self.tokens[start : start + limit])

    def behind(self, entry: EntryInfo, offset: int, stop: int, floor: int) -> int:
        """How many tokens of `entry` before `offset` equal the prompt's before `stop`, down to `floor`."""
        limit = min(offset, stop - floor)
        return _equal(entry.tokens[offset - limit : offset][::-1], self.tokens[stop - limit : stop][::-1])

    def after_parent(self, entry: EntryInfo, start: int) -> bool:
        """The span before ends at `start`, and is the end of what `entry` was computed right behind."""
        if not self.spans or self.floor != start or entry.parent != self.spans[-1].entry:
            return False
        return self.at_end(self.spans[-1])

    def at_end(self, span: Span) -> bool:
        return span.offset + span.length == self.m._entries[span.entry].num_tokens

    def whole_context(self, entry: EntryInfo, start: int) -> bool:
        """All the prompt before `start` is what `entry` was computed behind."""
        return entry.position == start and entry.context == context_digest(self.tokens[:start])

    def continues(self, hit: _Hit) -> bool:
        """An ancestor of the hit's entry, or an earlier part of itself, stands shortly before it."""
        for span in self.spans[-RECENT_SPANS:]:
            if hit.start - span.stop >= MAX_HOLE:
                continue
            if span.entry == hit.entry.id and span.offset + span.length <= hit.offset:
                return True
            ancestor = self.m._parent.get(hit.entry.id, "")
            for _ in range(MAX_ANCESTORS):
                if ancestor and ancestor == span.entry:
                    return True
                ancestor = self.m._parent.get(ancestor, "")
        return False

    # candidates

    def child(self, here: int) -> _Hit | None:
        if not self.spans or self.floor != here or not self.at_end(self.spans[-1]):
            return None
        hits = []
        for child_id in self.m._children.get(self.spans[-1].entry, [])[:MAX_CHILDREN]:
            entry = self.m._entries[child_id]
            if entry.salt not in self.salts:
                continue
            length = self.ahead(entry, 0, here)
            if length == entry.num_tokens or length >= MIN_SPAN:
                hits.append(_Hit(entry, here, here + length, 0, self.salts.index(entry.salt), True))
        return min(hits, key=lambda h: (-h.length, h.salt, h.entry.id), default=None)

    def window(self, here: int) -> _Hit | None:
        if here + MIN_SPAN > len(self.tokens):
            return None
        window = self.tokens[here : here + MIN_SPAN].tobytes()
        hits = []
        for rank, salt in enumerate(self.salts):
            same = self.m._windows.get((salt, window), [])
            tried = same if len(same) <= 2 * TRIES else same[:TRIES] + same[-TRIES:]
            for entry_id, offset in tried:
                entry = self.m._entries[entry_id]
                back = self.behind(entry, offset, here, self.floor)
                start, first = here - back, offset - back
                stands = first == 0 and (self.after_parent(entry, start) or self.whole_context(entry, start))
                hits.append(_Hit(entry, start, here + self.ahead(entry, offset, here), first, rank, stands))
        standing = [h for h in hits if h.stands]
        if standing:
            return min(standing, key=lambda h: (-h.length, h.salt, h.entry.id, h.offset))
        longest = max((h.length for h in hits), default=0)
        close = [h for h in hits if h.length > longest - MIN_SPAN]
        return min(close, key=lambda h: (self.kind(h), -h.length, h.salt, h.entry.id, h.offset), default=None)

    def kind(self, hit: _Hit) -> int:
        if hit.entry.context == EMPTY_CONTEXT:
            return 1
        return 0 if self.continues(hit) else 2

    # spans

    def take(self, hit: _Hit) -> None:
        entry, start, offset = hit.entry, hit.start, hit.offset
        reach = 0
        if offset and self.spans and start == self.floor:
            reach = self.behind(entry, offset, start, max(start - OVERLAP, 0))
            lowest = start - reach
            while self.spans and not self.spans[-1].context_stands and lowest <= self.spans[-1].start:
                self.spans.pop()
            if self.spans and lowest < self.floor and reach == offset:
                last = self.spans[-1]
                if not self.at_end(last) and lowest - last.start >= MIN_SPAN:
                    self.spans[-1] = replace(last, length=lowest - last.start)
            moved = start - max(lowest, self.floor)
            start, offset, reach = start - moved, offset - moved, reach - moved
        begin = start - offset
        seen_whole = reach == offset  # the entry's tokens before `offset` stand in the prompt as well
        whole = seen_whole and not self.after_parent(entry, begin) and self.whole_context(entry, begin)
        chain = [(entry, start, offset, hit.stop - start)]
        while chain[-1][2] == 0 and chain[-1][1] > self.floor:
            child, stop, _, _ = chain[-1]
            parent = self.m._entries.get(child.parent)
            if parent is None or parent.salt not in self.salts:
                break
            length = self.behind(parent, parent.num_tokens, stop, self.floor)
            if length < min(parent.num_tokens, MIN_SPAN):
                break
            chain.append((parent, stop - length, parent.num_tokens - length, length))
        for place, (one, first, skip, length) in reversed(list(enumerate(chain))):
            self.push(one, first, skip, length, whole=whole and (skip == 0 or place == 0))

    def push(self, entry: EntryInfo, start: int, offset: int, length: int, whole: bool = False) -> None:
        """Append a span. Behind its parent it is as exact as that one; else it needs its whole context."""
        behind_parent = offset == 0 and self.after_parent(entry, start)
        shift = start - offset - entry.position
        exact = shift == 0 and (whole or (behind_parent and self.spans[-1].exact))
        self.spans.append(Span(start, length, entry.id, offset, shift, whole or behind_parent, exact))
