"""The matcher: which runs of a prompt's tokens equal runs of stored tokens."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from blake3 import blake3

from agentcache.entry import _CONTEXT_DOMAIN, EntryInfo, Tokens, as_tokens, context_digest
from agentcache.match import entries, index, names, walk
from agentcache.match import prompt as prompts
from agentcache.match.arena import Arena
from agentcache.match.bridge import bridge
from agentcache.match.index import (
    FIRST,
    NUM,
    NUM_ENTRIES,
    NUM_FINGERPRINTS,
    NUM_ROWS,
    OWNER,
    POSITION,
    SALT,
    STRIDE,
    TOP,
    Int32s,
    UInt64s,
)
from agentcache.match.rules import EMPTY_CONTEXT, MIN_SPAN, TRIES
from agentcache.plan.types import Span

_NO_NAME = np.empty(0, np.uint64)
_NO_HOLES = np.empty(0, np.int32)
_NOTHING = np.empty((0, 6), np.int32), _NO_HOLES
_ID_BYTES = 64


class Matcher:
    """Stored token streams of one model, findable in prompts. Thread-safe.

    Nothing is found by hash alone: every token of a span was compared. `reference.ReferenceMatcher` is the
    same in plain words; what is found depends on entries present and the order they came in, never on the
    hash, whose function is drawn at random so that nobody can craft collisions.
    """

    def __init__(self) -> None:
        self._storage = index.Storage(secrets.randbits(64))
        self._index = self._storage.snapshot()
        self._arena = Arena()
        self._salts: dict[str, int] = {}
        self._salt_uses: list[int] = []
        self._free_salts: list[int] = []
        self._lock = threading.Lock()
        self._num_compared = 0

    def __len__(self) -> int:
        """Entries present."""
        return int(self._storage.counts[NUM_ENTRIES])

    @property
    def num_fingerprints(self) -> int:
        """Fingerprints of the entries present; one of fewer than MIN_SPAN tokens has none."""
        return int(self._storage.counts[NUM_FINGERPRINTS])

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, tokens and spare capacity included."""
        with self._lock:
            return sum(array.nbytes for array in self._index)

    @property
    def nbytes_tokens(self) -> int:
        """Bytes of `nbytes` that hold the tokens themselves."""
        with self._lock:
            return self._index.tokens.nbytes

    @property
    def num_compared(self) -> int:
        """Tokens compared by the last `match`."""
        return self._num_compared

    def add(self, info: EntryInfo, stride: int = MIN_SPAN) -> None:
        """Make an entry findable; nothing happens if one of that id is present.

        stride: tokens from one of its fingerprints to the next. A run of MIN_SPAN - 1 + stride tokens is found wherever
            it lies; a shorter one if it holds a fingerprint. 1 costs 90 bytes a token, MIN_SPAN 10.
        Raises ValueError for an entry without tokens or an id of more than 64 bytes.
        """
        num_tokens = info.num_tokens
        if not num_tokens:
            raise ValueError("an entry holds at least one token")
        name = _words(info.id)
        parent = _words(info.parent) if info.parent else _NO_NAME
        with self._lock:
            row = names.find_row(self._index, name)
            if row >= 0 and self._index.rows[row, NUM] > 0:
                return
            num_units = entries.units_of(num_tokens, stride)
            first = self._arena.take(num_units)
            try:
                self._make_room()
            except BaseException:
                self._arena.give(first, num_units)
                raise
            self._index.tokens[MIN_SPAN * first : MIN_SPAN * first + num_tokens] = info.tokens
            alone = info.context == EMPTY_CONTEXT
            unit = entries.put_entry(
                self._index,
                name,
                parent,
                _identity(info.context),
                first,
                num_tokens,
                info.position,
                self._use_salt(info.salt),
                alone,
                stride,
            )
            while unit >= 0:
                self._double_slots()
                unit = entries.put_units(self._index, int(self._index.units[unit, OWNER]), unit, alone)

    def remove(self, entry_id: str) -> None:
        """Forget an entry; nothing happens if it is absent. Its memory is used again."""
        name = _words(entry_id)
        with self._lock:
            row = names.find_row(self._index, name)
            if row < 0 or self._index.rows[row, NUM] == 0:
                return
            first, num_tokens = int(self._index.rows[row, FIRST]), int(self._index.rows[row, NUM])
            salt = int(self._index.rows[row, SALT])
            num_units = entries.units_of(num_tokens, int(self._index.rows[row, STRIDE]))
            entries.drop_entry(self._index, row)
            self._arena.give(first, num_units)
            self._drop_salt(salt)

    def match(
        self, tokens: Tokens, *, salts: Sequence[str] = ("",), start: int = 0, joined: bool = False
    ) -> list[Span]:
        """Runs of `tokens` that equal runs of entries under one of `salts`, inside [start, len(tokens)).

        Ascending, not overlapping, none across entries. A span has MIN_SPAN tokens at least unless it is a
        whole entry next to its neighbour in the stream, or the rest of a span that `start` cuts (what is
        before `start` counts as standing to the left). Of equals the entry of the first of `salts` is taken.
        joined: runs of one file between which a few tokens changed again and again are joined (`bridge`): then spans
        may have holes, and a piece that was joined on counts as standing behind its context
        """
        ids = np.array(tokens, np.int32)  # a copy: contiguous and writable, as the code was compiled for
        with self._lock:
            known = [self._salts[salt] for salt in dict.fromkeys(salts) if salt in self._salts]
            found, holes = self._walk(ids, known, joined) if known else _NOTHING
            found = found[found[:, prompts.STOP] > start]
            rows = found[:, prompts.ROW]
            found_ids = self._index.names[rows].byteswap().view(f"S{_ID_BYTES}").ravel().tolist()
            positions = self._index.rows[rows, POSITION]
        firsts = np.maximum(found[:, prompts.START], start)
        offsets = found[:, prompts.OFFSET] + firsts - found[:, prompts.START]
        columns = zip(
            firsts.tolist(),
            (found[:, prompts.STOP] - firsts).tolist(),
            found_ids,
            offsets.tolist(),
            (firsts - offsets - positions).tolist(),
            (found[:, prompts.STANDS] == 1).tolist(),
            (found[:, prompts.EXACT] == 1).tolist(),
            strict=True,
        )
        spans = [Span(a, n, entry.decode(), o, shift, s, e) for a, n, entry, o, shift, s, e in columns]
        return _with_holes(spans, holes) if len(holes) else spans

    def _walk(self, tokens: Tokens, salts: list[int], joined: bool) -> tuple[Int32s, Int32s]:
        """Spans found, int32 [n, 6], columns as in `candidates`; and all their holes, int32 [h]."""
        n, k = len(tokens), len(salts)
        digests = np.empty((8, 4), np.int32)
        digests[0] = _identity(EMPTY_CONTEXT)
        num_digests = 1
        digest_at = np.full(n + 1, -1, np.int32)
        digest_at[0] = 0
        prompt = prompts.Prompt(
            tokens=tokens,
            salts=np.array(salts, np.int32),
            spans=np.empty((n + 1, 6), np.int32),
            state=np.zeros(4, np.int64),
            digest_at=digest_at,
            digests=digests,
            hashes=np.empty((k, prompts.AHEAD), np.uint64),
            fetched=np.empty((k, prompts.AHEAD), np.uint64),
            hits=np.empty((2 * TRIES * k, 6), np.int32),
        )
        hasher, hashed = blake3(_CONTEXT_DOMAIN), 0
        raw = tokens.astype("<i4").tobytes()
        while walk.walk(self._index, prompt) == walk.NEEDS_DIGEST:
            wanted = int(prompt.state[prompts.NEEDED])
            if wanted < hashed:
                hasher, hashed = blake3(_CONTEXT_DOMAIN), 0
            hasher.update(raw[4 * hashed : 4 * wanted])
            hashed = wanted
            if num_digests == len(prompt.digests):
                prompt = prompt._replace(digests=np.concatenate([prompt.digests, prompt.digests]))
            prompt.digests[num_digests] = _identity(hasher.hexdigest())
            digest_at[wanted] = num_digests
            num_digests += 1
        self._num_compared = int(prompt.state[prompts.COMPARED])
        if not joined:
            return prompt.spans[: int(prompt.state[prompts.COUNT])], _NO_HOLES
        spans, holes = np.empty((n + 1, 6), np.int32), np.empty(n, np.int32)
        num_spans, num_holes = bridge(self._index, prompt, spans, holes)
        return spans[:num_spans], holes[:num_holes]

    def _make_room(self) -> None:
        """Memory for the units the arena gave out, and for two more rows."""
        storage, counts = self._storage, self._storage.counts
        num_rows = int(counts[TOP]) + 2
        if not storage.has(self._arena.top, num_rows):
            del self._index
            try:
                storage.reserve(self._arena.top, num_rows)
            finally:
                self._index = storage.snapshot()
        if 10 * (int(counts[NUM_ROWS]) + 2) > 7 * len(storage.places):
            old, storage.places = storage.places, np.zeros(2 * len(storage.places), np.uint64)
            self._index = storage.snapshot()
            names.put_all_places(self._index, old)

    def _double_slots(self) -> None:
        del self._index
        try:
            self._storage.double_slots()
        finally:
            self._index = self._storage.snapshot()

    def _use_salt(self, salt: str) -> int:
        number = self._salts.get(salt)
        if number is None:
            if self._free_salts:
                number = self._free_salts.pop()
            else:
                number = len(self._salt_uses)
                self._salt_uses.append(0)
            self._salts[salt] = number
        self._salt_uses[number] += 1
        return number

    def _drop_salt(self, number: int) -> None:
        self._salt_uses[number] -= 1
        if not self._salt_uses[number]:
            # rare: the last entry of a tenant
            del self._salts[next(salt for salt, known in self._salts.items() if known == number)]
            self._free_salts.append(number)


def warm_up() -> None:
    """Compile everything a match needs, so that no request waits for it."""
    matcher = Matcher()
    head, body = np.arange(40, dtype=np.int32), np.arange(1000, 1040, dtype=np.int32)
    context = context_digest(head)
    matcher.add(EntryInfo("head", "", EMPTY_CONTEXT, "", 0, head))
    matcher.add(EntryInfo("body", "", context, "head", 40, body))
    for number in range(2000):
        matcher.add(EntryInfo(str(number), "", EMPTY_CONTEXT, "", 0, as_tokens([number] * MIN_SPAN)))
    entries.put_units(
        matcher._index, 0, -1, False
    )  # called where the table grows, which chance decides: no unit here
    prompt = np.concatenate([head, body])
    matcher.match(prompt, joined=True)
    matcher.remove("head")
    matcher.match(prompt)
    matcher.remove("body")


def _with_holes(spans: list[Span], holes: Int32s) -> list[Span]:
    """`holes`: positions in any of the spans, ascending."""
    bounds = np.searchsorted(holes, [(span.start, span.stop) for span in spans]).tolist()
    return [
        replace(span, holes=tuple(holes[first:last].tolist())) if first < last else span
        for span, (first, last) in zip(spans, bounds, strict=True)
    ]


def _words(entry_id: str) -> UInt64s:
    """An id as eight big-endian words, NUL-padded."""
    raw = entry_id.encode()
    if len(raw) > _ID_BYTES:
        raise ValueError(f"an entry id has at most {_ID_BYTES} bytes")
    return np.frombuffer(raw.ljust(_ID_BYTES, b"\0"), ">u8").astype(np.uint64)


def _identity(context: str) -> Int32s:
    """A context digest as four words."""
    return np.frombuffer(blake3(context.encode()).digest(16), np.int32).copy()
