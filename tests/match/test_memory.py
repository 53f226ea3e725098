"""What the matcher holds, and that it holds no more after a while than before."""

from __future__ import annotations

import random
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentcache.entry import EntryInfo, as_tokens
from agentcache.match import Matcher, memory, warm_up
from agentcache.match.arena import Arena
from agentcache.match.synthetic import alone, join, stream


def entries(count: int, seed: int = 0, length: int = 200) -> list[EntryInfo]:
    rng = np.random.default_rng(seed)
    return [alone(rng.integers(0, 50_000, rng.integers(4, length))) for _ in range(count)]


def test_a_steady_state_does_not_grow() -> None:
    matcher = Matcher()
    live = entries(2000)
    for entry in live:
        matcher.add(entry)
    draw = random.Random(0)
    peak = 0
    for generation in range(1, 8):
        for entry in entries(2000, generation):
            place = draw.randrange(len(live))
            matcher.remove(live[place].id)
            live[place] = entry
            matcher.add(entry)
        if generation == 3:
            peak = matcher.nbytes
    assert len(matcher) == 2000
    assert matcher.nbytes == peak
    for entry in live:
        assert [span.entry for span in matcher.match(entry.tokens)] == [entry.id] * (entry.num_tokens >= 16)
        matcher.remove(entry.id)
    assert (len(matcher), matcher.num_fingerprints) == (0, 0)


def test_bytes_a_fingerprint() -> None:
    """Besides the tokens, under 64 whatever the state of growth; capacity counts, in use or not."""
    matcher = Matcher()
    for number, entry in enumerate(entries(30_000)):
        matcher.add(entry)
        if number > 2000 and number % 97 == 0:
            assert matcher.nbytes - matcher.nbytes_tokens < 64 * matcher.num_fingerprints


@pytest.mark.skipif(sys.platform != "linux", reason="needs mremap")
def test_growing_copies_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    matcher = Matcher()
    monkeypatch.delattr(memory, "_anonymous")  # what a copy would need
    stored = entries(3000)
    for entry in stored:
        matcher.add(entry)
    assert matcher.match(stored[0].tokens)[0].entry == stored[0].id


def test_growing_copies_where_it_must() -> None:
    growing = memory.Growing(np.int32, 3)
    growing.reserve(10)
    held = growing.array
    held[:] = 7
    growing.reserve(1000)
    assert (growing.array[: len(held)] == 7).all()
    assert not growing.array[len(held) :].any()


def test_an_insert_without_memory_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    matcher = Matcher()
    few = entries(20)
    for entry in few:
        matcher.add(entry)
    large = alone(np.arange(100_000))

    def refuse(*_: object, **__: object) -> None:
        raise OSError("no memory")

    with monkeypatch.context() as patched:
        patched.setattr(memory.Growing, "_enlarge", refuse)
        with pytest.raises(OSError, match="no memory"):
            matcher.add(large)
    assert len(matcher) == 20
    assert matcher.match(few[0].tokens)[0].entry == few[0].id
    matcher.add(large)
    assert matcher.match(large.tokens)[0].entry == large.id


def test_salts_come_and_go() -> None:
    matcher = Matcher()
    block = np.arange(40, dtype=np.int32)
    for number in range(300):
        salt = f"tenant {number}"
        entry = alone(block, salt)
        matcher.add(entry)
        assert [span.entry for span in matcher.match(block, salts=(salt,))] == [entry.id]
        assert matcher.match(block, salts=(f"tenant {number - 1}",)) == []
        matcher.remove(entry.id)
        assert matcher.match(block, salts=(salt,)) == []


def test_ids_of_any_kind() -> None:
    matcher = Matcher()
    tokens = np.arange(40, dtype=np.int32)
    with pytest.raises(ValueError, match="64 bytes"):
        matcher.add(EntryInfo("x" * 65, "", "context", "", 0, tokens))
    for name in ("a", "z" * 64, "é"):
        matcher.add(EntryInfo(name, "", "context", "", 0, tokens))
        assert matcher.match(tokens)[0].entry == name
        matcher.remove(name)


def test_warm_up_compiles_all_that_is_called() -> None:
    """In a process of its own: whatever is added, matched or removed later, nothing is compiled any more."""
    code = """
import numpy as np
from agentcache.match import Matcher, entries, names, warm_up, walk
from agentcache.match.synthetic import alone, stream

called = [names.find_row, names.put_all_places, walk.walk]
called += [entries.put_entry, entries.put_units, entries.drop_entry]
warm_up()
before = [len(one.signatures) for one in called]
matcher = Matcher()
stored = stream([np.arange(i, i + 100) for i in range(0, 900, 100)])
stored += [alone([i] * 16, "tenant") for i in range(9000)]
for entry in stored:
    matcher.add(entry)
assert matcher.match(np.arange(900, dtype=np.int32), salts=("", "tenant"), start=3)
for entry in stored:
    matcher.remove(entry.id)
print(before, [len(one.signatures) for one in called])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[1, 1, 1, 1, 1, 1] [1, 1, 1, 1, 1, 1]", done.stderr


def test_threads_share_a_matcher() -> None:
    warm_up()
    matcher = Matcher()
    file = stream([np.arange(i * 100, i * 100 + 40) for i in range(20)])
    for entry in file:
        matcher.add(entry)
    prompt = join([9999], *file)
    expected = matcher.match(prompt)
    stop = threading.Event()

    def churn() -> None:
        others = entries(500, 3)
        while not stop.is_set():
            for entry in others:
                matcher.add(entry)
            for entry in others:
                matcher.remove(entry.id)

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        assert all(matcher.match(prompt) == expected for _ in range(200))
    finally:
        stop.set()
        thread.join()


@settings(max_examples=150, deadline=None)
@given(sizes=st.lists(st.integers(1, 9), max_size=60), order=st.randoms(use_true_random=False))
def test_arena_never_hands_out_a_unit_twice(sizes: list[int], order: random.Random) -> None:
    arena = Arena()
    taken: dict[int, int] = {}
    for size in sizes:
        if taken and order.random() < 0.5:
            start = order.choice(sorted(taken))
            arena.give(start, taken.pop(start))
        start = arena.take(size)
        taken[start] = size
        units = [unit for first, count in taken.items() for unit in range(first, first + count)]
        assert len(units) == len(set(units))
        assert max(units) < arena.top
        assert len(units) + arena.num_free == arena.top
    for start in order.sample(sorted(taken), len(taken)):
        arena.give(start, taken[start])
    assert (arena.top, arena.num_free) == (0, 0), "free neighbours are joined"


def test_tokens_of_any_integer_type() -> None:
    matcher = Matcher()
    entry = alone(range(40))
    matcher.add(entry)
    assert len(matcher.match(as_tokens(list(range(40))))) == 1
    assert len(matcher.match(np.arange(40)[::1].astype(np.int64))) == 1
