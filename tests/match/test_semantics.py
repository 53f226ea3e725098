"""What is matched, case by case. Both matchers must pass."""

from __future__ import annotations

import numpy as np
import pytest

from agentcache.entry import EntryInfo, as_tokens
from agentcache.match import Matcher
from agentcache.match.reference import ReferenceMatcher
from agentcache.match.synthetic import alone, join, stream
from agentcache.plan.types import Span

Any_Matcher = Matcher | ReferenceMatcher


@pytest.fixture(params=[Matcher, ReferenceMatcher])
def matcher(request: pytest.FixtureRequest) -> Any_Matcher:
    made: Any_Matcher = request.param()
    return made


def tokens(seed: int, length: int) -> np.ndarray:
    return as_tokens(np.random.default_rng(seed).integers(0, 50_000, length))


def add(matcher: Any_Matcher, *entries: EntryInfo) -> None:
    for entry in entries:
        matcher.add(entry)


def brief(spans: list[Span]) -> list[tuple[int, int, int]]:
    return [(span.start, span.length, span.offset) for span in spans]


def flags(spans: list[Span]) -> list[tuple[bool, bool]]:
    return [(span.context_stands, span.exact) for span in spans]


FILE = stream([tokens(1, 50), tokens(2, 5), tokens(3, 100), tokens(4, 33)])
FRESH = tokens(99, 40)


def test_a_file_from_the_start_is_exact(matcher: Any_Matcher) -> None:
    add(matcher, *FILE)
    spans = matcher.match(join(*FILE, FRESH))
    assert [span.entry for span in spans] == [entry.id for entry in FILE]
    assert brief(spans) == [(0, 50, 0), (50, 5, 0), (55, 100, 0), (155, 33, 0)]
    assert flags(spans) == [(True, True)] * 4
    assert {span.shift for span in spans} == {0}


def test_a_file_behind_something_stands_from_its_second_block_on(matcher: Any_Matcher) -> None:
    add(matcher, *FILE)
    spans = matcher.match(join(FRESH, *FILE))
    assert brief(spans) == [(40, 50, 0), (90, 5, 0), (95, 100, 0), (195, 33, 0)]
    assert flags(spans) == [(False, False)] + [(True, False)] * 3
    assert {span.shift for span in spans} == {40}


@pytest.mark.parametrize("lead", range(17))
def test_any_alignment_matches_in_full(matcher: Any_Matcher, lead: int) -> None:
    block = alone(tokens(5, 45))
    add(matcher, block)
    assert brief(matcher.match(join(FRESH[:lead], block, FRESH))) == [(lead, 45, 0)]


@pytest.mark.parametrize(("first", "last"), [(0, 16), (1, 40), (7, 38), (29, 45), (13, 44)])
def test_a_piece_of_a_block_matches(matcher: Any_Matcher, first: int, last: int) -> None:
    block = alone(tokens(5, 45))
    add(matcher, block)
    [span] = matcher.match(join(FRESH, block.tokens[first:last], FRESH))
    assert (span.start, span.length, span.offset, span.shift) == (40, last - first, first, 40 - first)
    assert not span.context_stands or first == 0


def test_a_piece_without_a_whole_window_is_not_looked_for(matcher: Any_Matcher) -> None:
    block = alone(tokens(5, 45))
    add(matcher, block)
    assert matcher.match(join(FRESH, block.tokens[1:31])) == []  # windows are [0:16], [16:32], [29:45]
    assert matcher.match(join(FRESH, block.tokens[:15])) == []


def test_the_same_block_twice_is_matched_twice(matcher: Any_Matcher) -> None:
    block = alone(tokens(5, 45))
    add(matcher, block)
    assert brief(matcher.match(join(block, block, FRESH, block))) == [(0, 45, 0), (45, 45, 0), (130, 45, 0)]


def test_in_file_behind_its_block_and_alone_elsewhere(matcher: Any_Matcher) -> None:
    single = alone(FILE[2].tokens)
    add(matcher, *FILE, single)
    assert matcher.match(join(*FILE))[2].entry == FILE[2].id
    assert [span.entry for span in matcher.match(join(FRESH, single))] == [single.id]
    assert [span.entry for span in matcher.match(single.tokens)] == [single.id]
    assert flags(matcher.match(single.tokens)) == [(True, True)]


def test_the_context_of_the_whole_prompt_stands_without_a_parent(matcher: Any_Matcher) -> None:
    add(matcher, FILE[2])
    [span] = matcher.match(join(*FILE))
    assert (span.start, span.length, span.context_stands, span.exact) == (55, 100, True, True)
    other = join(FILE[0].tokens + 1, *FILE[1:])
    assert flags(matcher.match(other)) == [(False, False)]


def test_what_was_computed_in_two_contexts_is_told_apart(matcher: Any_Matcher) -> None:
    one, two = stream([tokens(1, 50), tokens(3, 100)]), stream([tokens(2, 60), tokens(3, 100)])
    add(matcher, *one, *two)
    for file in (one, two):
        spans = matcher.match(join(FRESH, *file))
        assert [span.entry for span in spans] == [entry.id for entry in file]


def test_blocks_behind_an_edit_continue_their_file(matcher: Any_Matcher) -> None:
    single = alone(FILE[2].tokens)
    add(matcher, *FILE, single)
    spans = matcher.match(join(FILE[0], FRESH, *FILE[2:]))
    assert [span.entry for span in spans] == [FILE[0].id, FILE[2].id, FILE[3].id]
    assert flags(spans) == [(True, True), (False, False), (True, False)]


def test_a_block_far_behind_its_file_is_alone(matcher: Any_Matcher) -> None:
    single = alone(FILE[2].tokens)
    add(matcher, *FILE, single)
    for hole, expected in (
        (2042, FILE[2].id),
        (2043, single.id),
    ):  # FILE[1] itself is five tokens of the hole
        prompt = join(FILE[0], tokens(7, hole + 5), FILE[2])
        assert matcher.match(prompt)[1].entry == expected


def test_an_edit_inside_a_block_leaves_two_spans_of_it(matcher: Any_Matcher) -> None:
    add(matcher, *FILE)
    block = FILE[2].tokens
    spans = matcher.match(join(*FILE[:2], block[:40], FRESH[:3], block[42:], FILE[3]))
    assert brief(spans)[2:] == [(55, 40, 0), (98, 58, 42), (156, 33, 0)]
    assert flags(spans)[2:] == [(True, True), (False, False), (True, False)]


def test_short_blocks_are_chained_forwards_and_backwards(matcher: Any_Matcher) -> None:
    short = [tokens(10, 3), tokens(11, 7)]
    file = stream([*short, tokens(12, 40), *short, tokens(13, 2)])
    add(matcher, *file)
    spans = matcher.match(join(FRESH, *file, FRESH))
    assert [span.entry for span in spans] == [entry.id for entry in file]
    assert flags(spans) == [(False, False)] + [(True, False)] * 5
    assert matcher.match(join(FRESH, *file[:2])) == []


def test_the_longest_child_is_taken(matcher: Any_Matcher) -> None:
    head, body = tokens(1, 30), tokens(2, 60)
    children = [stream([head, body[:length]])[1] for length in (4, 12, 60)]
    add(matcher, stream([head])[0], *children)
    assert matcher.match(join(head, body))[1].entry == children[2].id
    assert matcher.match(join(head, body[:13], FRESH))[1].entry == children[1].id
    assert matcher.match(join(head, body[:5], FRESH))[1].entry == children[0].id


def test_of_equals_the_longest_then_the_lowest_id(matcher: Any_Matcher) -> None:
    block = tokens(6, 80)
    contexts = [stream([tokens(20 + i, 20), block])[1] for i in range(3)]
    add(matcher, *contexts)
    assert matcher.match(join(FRESH, block))[0].entry == min(entry.id for entry in contexts)
    longer = stream([tokens(30, 20), join(block, FRESH)])[1]
    add(matcher, longer)
    assert matcher.match(join(FRESH, block, FRESH))[0].entry == longer.id


def test_a_bit_longer_does_not_outweigh_alone(matcher: Any_Matcher) -> None:
    block = tokens(6, 80)
    single = alone(block)
    for more, expected in ((15, True), (16, False)):
        longer = stream([tokens(30, 20), join(block, FRESH[:more])])[1]
        add(matcher, single, longer)
        assert (matcher.match(join(FRESH, block, FRESH))[0].entry == single.id) is expected
        matcher.remove(longer.id)


def test_a_span_that_ran_on_by_chance_gives_back_the_head_of_the_next(matcher: Any_Matcher) -> None:
    head = tokens(8, 6)
    ran_on = alone(join(tokens(9, 40), head, tokens(10, 30)))
    block = alone(join(head, tokens(11, 60)))
    add(matcher, ran_on, block)
    spans = matcher.match(join(FRESH, ran_on.tokens[:40], block))
    assert brief(spans) == [(40, 40, 0), (80, 66, 0)]


def test_a_span_inside_a_longer_one_is_dropped(matcher: Any_Matcher) -> None:
    block = alone(tokens(12, 200))
    licence = alone(block.tokens[5:25])  # found first: the block's own window comes later at this alignment
    add(matcher, licence, block)
    matcher_spans = matcher.match(join(FRESH, block.tokens[3:]))
    assert brief(matcher_spans) == [(40, 197, 3)]


def test_exact_where_the_head_of_a_block_lies_in_the_span_before(matcher: Any_Matcher) -> None:
    whole = tokens(13, 120)
    first = alone(whole[:60])
    other = stream([whole[:50], whole[50:]])[1]  # the same stream cut elsewhere
    add(matcher, first, other)
    spans = matcher.match(whole)
    assert brief(spans) == [(0, 60, 0), (60, 60, 10)]
    assert flags(spans) == [(True, True), (True, True)]


def test_salts_are_worlds_of_their_own(matcher: Any_Matcher) -> None:
    block = tokens(6, 80)
    mine, yours, shared = alone(block, "mine"), alone(block, "yours"), alone(block)
    add(matcher, mine, yours)
    assert matcher.match(block) == []
    assert matcher.match(block, salts=("unknown",)) == []
    assert matcher.match(block, salts=()) == []
    assert matcher.match(block, salts=("mine",))[0].entry == mine.id
    add(matcher, shared)
    assert matcher.match(block)[0].entry == shared.id
    assert matcher.match(block, salts=("mine", ""))[0].entry == mine.id
    assert matcher.match(block, salts=("", "mine"))[0].entry == shared.id
    matcher.remove(mine.id)
    assert matcher.match(block, salts=("mine", ""))[0].entry == shared.id
    assert matcher.match(block, salts=("mine",)) == []


def test_children_and_parents_of_another_salt_are_not_seen(matcher: Any_Matcher) -> None:
    """A stream may go on under a salt; whoever may not see it must not get it by way of the chain."""
    head, tail = FILE[0], FILE[1]
    secret = EntryInfo("s" * 64, "mine", tail.context, head.id, tail.position, tail.tokens)
    add(matcher, head, secret)
    assert len(matcher.match(join(head, tail))) == 1
    assert len(matcher.match(join(head, tail), salts=("", "mine"))) == 2
    below = EntryInfo("b" * 64, "", FILE[2].context, secret.id, FILE[2].position, FILE[2].tokens)
    add(matcher, below)
    assert [span.entry for span in matcher.match(join(FRESH, tail, below))] == [below.id]


def test_start_cuts_and_keeps_what_stood(matcher: Any_Matcher) -> None:
    add(matcher, *FILE)
    prompt = join(*FILE, FRESH)
    whole = matcher.match(prompt)
    position = {entry.id: entry.position for entry in FILE}
    for start in (1, 49, 50, 52, 60, 150, 188, len(prompt)):
        spans = matcher.match(prompt, start=start)
        assert all(span.exact and span.context_stands and span.shift == 0 for span in spans)
        assert [(s.stop, s.entry) for s in spans] == [(s.stop, s.entry) for s in whole if s.stop > start]
        assert all(span.start >= start for span in spans)
        assert all(span.offset == span.start - position[span.entry] for span in spans)


def test_a_short_run_is_found_wherever_it_lies_if_every_token_has_a_fingerprint(matcher: Any_Matcher) -> None:
    sparse, dense = alone(tokens(1, 100)), alone(tokens(2, 100))
    matcher.add(sparse)
    matcher.add(dense, 1)
    assert matcher.num_fingerprints == 7 + 85
    for entry, offsets in ((sparse, [0, 16, 32, 48, 64, 80, 84]), (dense, list(range(85)))):
        found = [
            offset
            for offset in range(85)
            if matcher.match(join(FRESH, entry.tokens[offset : offset + 16], tokens(98, 40)))
        ]
        assert found == offsets
    matcher.remove(dense.id)
    assert matcher.num_fingerprints == 7


def test_removed_and_added_again(matcher: Any_Matcher) -> None:
    add(matcher, *FILE, *FILE)
    assert len(matcher) == 4
    assert matcher.num_fingerprints == 4 + 7 + 3
    for entry in FILE:
        matcher.remove(entry.id)
        matcher.remove(entry.id)
    matcher.remove("never there")
    assert (len(matcher), matcher.num_fingerprints, matcher.match(join(*FILE))) == (0, 0, [])
    add(matcher, *reversed(FILE))
    assert [span.entry for span in matcher.match(join(*FILE))] == [entry.id for entry in FILE]


def test_a_removed_block_still_links_its_file_together(matcher: Any_Matcher) -> None:
    single = alone(FILE[2].tokens)
    add(matcher, *FILE, single)
    matcher.remove(FILE[1].id)
    spans = matcher.match(join(FRESH, FILE[0], FILE[1], FILE[2]))
    assert [span.entry for span in spans] == [FILE[0].id, FILE[2].id]


def test_odd_prompts(matcher: Any_Matcher) -> None:
    add(matcher, *FILE)
    assert matcher.match(as_tokens([])) == []
    assert matcher.match(tokens(1, 50)[:15]) == []
    assert len(matcher.match(np.concatenate([FILE[0].tokens] * 2)[::-1][::-1])) == 2
    frozen = FILE[0].tokens.copy()
    frozen.flags.writeable = False
    assert len(matcher.match(frozen)) == 1
    with pytest.raises(ValueError, match="at least one token"):
        matcher.add(EntryInfo("x", "", "", "", 0, as_tokens([])))


def test_one_token_off_ends_a_span(matcher: Any_Matcher) -> None:
    block = alone(tokens(5, 64))
    add(matcher, block)
    prompt = block.tokens.copy()
    prompt[40] += 1
    assert brief(matcher.match(prompt)) == [(0, 40, 0), (41, 23, 41)]
