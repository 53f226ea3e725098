"""With a hash that collides all the time, nothing else is found: tokens are compared, hashes only point."""

from __future__ import annotations

import secrets

import numpy as np
import pytest

from agentcache.match import Matcher
from agentcache.match.reference import ReferenceMatcher
from agentcache.match.synthetic import alone, join, stream


@pytest.fixture
def colliding(monkeypatch: pytest.MonkeyPatch) -> Matcher:
    """Its multiplier is 1: a window's hash is the sum of its tokens."""
    monkeypatch.setattr(secrets, "randbits", lambda bits: 0)
    return Matcher()


def test_windows_of_one_hash_are_told_apart(colliding: Matcher) -> None:
    rng = np.random.default_rng(0)
    base = np.arange(48, dtype=np.int32)
    stored = [
        alone(np.concatenate([rng.permutation(base[:16]), rng.permutation(base[16:])])) for _ in range(300)
    ]
    slow = ReferenceMatcher()
    for entry in stored:
        colliding.add(entry)
        slow.add(entry)
    for _ in range(50):
        prompt = join(rng.permutation(base[:16]), stored[rng.integers(300)], rng.permutation(base))
        assert colliding.match(prompt) == slow.match(prompt)
    for entry in stored[::2]:
        colliding.remove(entry.id)
        slow.remove(entry.id)
    assert colliding.num_fingerprints == slow.num_fingerprints
    for entry in stored:
        assert colliding.match(entry.tokens) == slow.match(entry.tokens)


def test_results_do_not_depend_on_the_hash(colliding: Matcher, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    file = stream([rng.integers(0, 3, rng.integers(5, 60)) for _ in range(30)])
    monkeypatch.undo()
    others = [Matcher() for _ in range(3)]
    prompt = join([1, 2], *file[3:9], [1] * 30, *file[12:20], rng.integers(0, 3, 100))
    for matcher in (colliding, *others):
        for entry in file:
            matcher.add(entry)
    assert all(matcher.match(prompt) == colliding.match(prompt) for matcher in others)
