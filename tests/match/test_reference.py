"""The fast matcher agrees with the slow one, on streams made to collide."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentcache.entry import EntryInfo, Tokens, as_tokens, context_digest
from agentcache.match import Matcher
from agentcache.match.reference import ReferenceMatcher
from agentcache.match.synthetic import alone, join, stream
from agentcache.plan.types import Span

LENGTHS = st.sampled_from([1, 2, 5, 15, 16, 17, 20, 31, 32, 33, 48, 70, 100])
SALTS = st.sampled_from([("",), ("a", ""), ("", "a", "b"), ("b",), ("unknown",), ()])


def stride_of(number: int) -> int:
    """Of entries of one scene, some have more fingerprints than others."""
    return (16, 1, 5)[number % 3]


def block(draw: Any, alphabet: int, seeds: st.SearchStrategy[int]) -> Tokens:
    rng = np.random.default_rng(draw(seeds))
    return as_tokens(rng.integers(0, alphabet, draw(LENGTHS)))


def edited(draw: Any, tokens: Tokens, alphabet: int) -> Tokens:
    """Some tokens replaced by others, or an end cut off."""
    if not len(tokens):
        return tokens
    at = draw(st.integers(0, len(tokens) - 1))
    change = draw(st.sampled_from(["none", "replace", "head", "tail"]))
    if change == "replace":
        new = np.random.default_rng(at).integers(0, alphabet, draw(st.integers(0, 20)))
        return join(tokens[:at], new, tokens[at + draw(st.integers(0, 3)) :])
    return {"none": tokens, "head": tokens[:at], "tail": tokens[at:]}[change]


@st.composite
def scenes(draw: Any) -> tuple[list[EntryInfo], list[tuple[bool, int]], Tokens]:
    """Entries, a history of adding (True) and removing some of them, and a prompt."""
    alphabet = draw(st.sampled_from([1, 2, 2, 3, 50]))
    seeds = st.integers(0, 6)
    entries: list[EntryInfo] = []
    files = []
    for _ in range(draw(st.integers(1, 5))):
        file = [block(draw, alphabet, seeds) for _ in range(draw(st.integers(1, 6)))]
        salt = draw(st.sampled_from(["", "", "a", "b"]))
        files.append(file)
        entries += stream(file, salt)
        if draw(st.booleans()):
            at = draw(st.integers(0, len(file) - 1))
            files.append([*file[:at], block(draw, alphabet, seeds), *file[at + 1 :]])
            entries += stream(files[-1], salt)
        entries += [alone(one, salt) for one in file if draw(st.booleans())]
    every = list(range(len(entries)))
    history = [(True, number) for number in draw(st.permutations(every))]
    history += draw(st.lists(st.tuples(st.booleans(), st.sampled_from(every)), max_size=2 * len(every)))
    parts = []
    for _ in range(draw(st.integers(1, 5))):
        file = draw(st.sampled_from(files))
        order = draw(st.permutations(file)) if draw(st.booleans()) else file
        parts.append(edited(draw, join(*order), alphabet))
        if draw(st.booleans()):
            parts.append(block(draw, alphabet + 1, seeds)[:20])
    return entries, history, join(*parts)


def check(spans: list[Span], prompt: Tokens, entries: dict[str, EntryInfo], salts: tuple[str, ...]) -> None:
    """What holds of any result, whoever made it."""
    stop = 0
    for span in spans:
        entry = entries[span.entry]
        assert entry.salt in salts
        assert span.start >= stop
        assert span.length > 0
        stop = span.stop
        assert span.offset + span.length <= entry.num_tokens, "a span crosses its entry's end"
        stored = entry.tokens[span.offset : span.offset + span.length]
        assert np.array_equal(prompt[span.start : span.stop], stored)
        assert span.shift == span.start - entry.position - span.offset
        if span.exact:
            begin = span.start - span.offset
            assert span.shift == 0
            assert span.context_stands
            assert context_digest(prompt[:begin]) == entry.context
            assert np.array_equal(prompt[begin : span.stop], entry.tokens[: span.offset + span.length])
    for number, span in enumerate(spans):
        if span.length < 16:
            near = [*spans[max(number - 1, 0) : number], *spans[number + 1 : number + 2]]
            assert any(a.stop == span.start or span.stop == a.start for a in near), "short and not chained"


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(scene=scenes(), salts=SALTS, share=st.floats(0, 1))
def test_same_spans(
    scene: tuple[list[EntryInfo], list[tuple[bool, int]], Tokens], salts: tuple[str, ...], share: float
) -> None:
    entries, history, prompt = scene
    fast, slow = Matcher(), ReferenceMatcher()
    for adding, number in history:
        for one in (fast, slow):
            one.add(entries[number], stride_of(number)) if adding else one.remove(entries[number].id)
    assert (len(fast), fast.num_fingerprints) == (len(slow), slow.num_fingerprints)
    found = fast.match(prompt, salts=salts)
    assert found == slow.match(prompt, salts=salts)
    check(found, prompt, {entry.id: entry for entry in entries}, salts)
    start = round(share * len(prompt))
    assert fast.match(prompt, salts=salts, start=start) == slow.match(prompt, salts=salts, start=start)


@settings(max_examples=40, deadline=None)
@given(scene=scenes())
def test_nothing_remains_of_what_was_removed(
    scene: tuple[list[EntryInfo], list[tuple[bool, int]], Tokens],
) -> None:
    entries, history, prompt = scene
    used, fresh = Matcher(), Matcher()
    for adding, number in history:
        used.add(entries[number], stride_of(number)) if adding else used.remove(entries[number].id)
    for entry in entries:
        used.remove(entry.id)
    assert (len(used), used.num_fingerprints) == (0, 0)
    assert used.match(prompt, salts=("", "a", "b")) == []
    held = used.nbytes
    for entry in entries:
        used.add(entry)
        fresh.add(entry)
    assert used.match(prompt, salts=("", "a", "b")) == fresh.match(prompt, salts=("", "a", "b"))
    assert used.nbytes <= max(held, fresh.nbytes)
