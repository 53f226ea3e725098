"""What each policy counts, on prompts small enough to count by hand; and against slow, obvious versions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from agentcache.entry import Tokens, as_tokens
from agentcache.learn.runs import JOIN_TOKENS, MIN_TOKENS, runs_to_learn
from agentcache.replay.blended import Blended
from agentcache.replay.chunks import ChunkGrid
from agentcache.replay.kinds import Kind
from agentcache.replay.learn import Learner
from agentcache.replay.outcome import Policy
from agentcache.replay.prefix import PageChain, Prefix
from agentcache.replay.prompt import Prompt
from agentcache.replay.replay import replay
from agentcache.replay.source import Source
from agentcache.replay.tiers import Tiers
from agentcache.replay.tokenize import LineEncoder
from agentcache.replay.trace import Answer, Request
from agentcache.replay.windows import UpperBound
from tests.replay.conftest import CODE, chat_request


def prompt_of(number: int, tokens: Tokens, generated: Tokens | None = None) -> Prompt:
    request = Request(number, "t", 0.0, "completions", {"prompt": tokens.tolist()}, Answer())
    none = np.zeros(len(tokens), np.int64)
    new = as_tokens([]) if generated is None else generated
    return Prompt(request, "", tokens, none, np.zeros(len(tokens), np.uint8), new, "")


def served(policy: Policy, prompts: list[Prompt]) -> list[int]:
    counts = []
    for prompt in prompts:
        outcome = policy.serve(prompt)
        policy.answered(prompt, outcome)
        assert not (outcome.recomputed & ~outcome.reused).any()
        counts.append(int(outcome.reused.sum()))
    return counts


def ids(start: int, count: int) -> Tokens:
    return as_tokens(range(start, start + count))


def test_prefix_counts_full_pages_and_leaves_the_last_token() -> None:
    same = ids(0, 64)
    longer = np.concatenate([ids(0, 50), ids(500, 50)])
    assert served(Prefix(), [prompt_of(0, same), prompt_of(1, same), prompt_of(2, longer)]) == [0, 48, 48]


def test_generated_tokens_are_cached_with_their_prompt() -> None:
    first = prompt_of(0, ids(0, 32), generated=ids(100, 32))
    then = prompt_of(1, np.concatenate([ids(0, 32), ids(100, 32), ids(200, 8)]))
    assert served(Prefix(), [first, then]) == [0, 64]


def test_breaks_say_where() -> None:
    policy = Prefix()
    served(policy, [prompt_of(0, ids(0, 64)), prompt_of(1, np.concatenate([ids(0, 37), ids(500, 40)]))])
    assert policy.breaks[1].other == 0
    assert (policy.breaks[1].hit_tokens, policy.breaks[1].common_tokens) == (32, 37)
    assert not policy.breaks[1].grown
    served(policy, [prompt_of(2, ids(0, 90))])
    assert policy.breaks[2].grown  # all of the first, and more


def test_chunks_follow_the_published_rules() -> None:
    stored = ids(0, 1024)
    moved = np.concatenate([ids(5000, 10), ids(256, 256), ids(6000, 10), ids(256, 256), ids(7000, 5)])
    first_chunk = np.concatenate([ids(5100, 10), ids(0, 256), ids(7000, 5)])
    off_grid = np.concatenate([ids(5200, 10), ids(300, 256), ids(7000, 5)])
    prompts = [
        prompt_of(i, tokens) for i, tokens in enumerate([stored, stored, moved, first_chunk, off_grid])
    ]
    # repeated: the prefix's chunks, less the one the last token is in; moved: a chunk once; the others: never
    assert served(ChunkGrid(), prompts) == [0, 768, 256, 0, 0]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_upper_bound_equals_the_obvious_one(data: st.DataObject) -> None:
    parts = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=40))
    texts = [as_tokens(parts[at:] + parts[:at]) for at in range(0, len(parts), 3)]
    policy = UpperBound(size=4)
    seen: set[tuple[int, ...]] = set()
    for number, tokens in enumerate(texts):
        plain = tokens.tolist()
        expected = [False] * len(plain)
        for at in range(len(plain) - 3):
            if tuple(plain[at : at + 4]) in seen:
                expected[at : at + 4] = [True] * 4
        prompt = prompt_of(number, tokens)
        outcome = policy.serve(prompt)
        assert outcome.reused.tolist() == expected
        policy.answered(prompt, outcome)
        seen.update(tuple(plain[at : at + 4]) for at in range(len(plain) - 3))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 1), max_size=40), max_size=8))
def test_page_hits_equal_the_longest_common_start(texts: list[list[int]]) -> None:
    chain = PageChain(4)
    before: list[list[int]] = []
    for number, text in enumerate(texts):
        hit, owner = chain.hit(as_tokens(text))
        longest = 0
        for other in before:
            common = next((i for i, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), None)
            common = min(len(text), len(other)) if common is None else common
            longest = max(longest, min(common, max(0, len(text) - 1)) // 4 * 4)
        assert hit == longest
        assert (owner >= 0) == (hit > 0)
        chain.add(as_tokens(text), number)
        before.append(text)


@given(st.lists(st.booleans(), max_size=300), st.integers(0, 40))
def test_learned_runs_are_apart_and_hold_every_long_gap(reused: list[bool], join: int) -> None:
    mask = np.array(reused, np.bool_)
    found = list(runs_to_learn(mask, join))
    inside = np.zeros(len(mask), np.bool_)
    end = -join - 1
    for start, stop in found:
        assert stop - start >= MIN_TOKENS
        assert start - end > join
        assert not mask[start]
        assert not mask[stop - 1]
        inside[start:stop] = True
        end = stop
    run = 0
    for position, taken in enumerate([*reused, True]):
        run = 0 if taken else run + 1
        if run >= MIN_TOKENS:
            assert inside[position]


def test_joined_runs_reach_across_short_spans() -> None:
    mask = np.ones(1000, np.bool_)
    mask[100:108] = mask[150:160] = mask[160 + JOIN_TOKENS + 1 : 160 + JOIN_TOKENS + 31] = False
    assert list(runs_to_learn(mask)) == [(100, 160), (160 + JOIN_TOKENS + 1, 160 + JOIN_TOKENS + 31)]


def test_short_runs_of_what_was_learned_are_reused_wherever_they_lie() -> None:
    first = prompt_of(0, ids(0, 100))
    others = [
        prompt_of(
            1 + place,
            np.concatenate([ids(1000 + 200 * place, 60), ids(place, 24), ids(1100 + 200 * place, 60)]),
        )
        for place in range(17)
    ]
    policy = Blended(None, Learner(lambda text: as_tokens([])))
    assert served(policy, [first, *others]) == [0] + [24] * 17


def conversation(folder: Path, repository: Path | None, tiers: Tiers | None = None) -> dict[str, int]:
    """Reused tokens by policy of a second request that shows the file behind another question."""
    asked = [
        [{"role": "user", "content": "Is this right? Answer in one short sentence, please.\n" + CODE}],
        [{"role": "user", "content": "Completely different beginning of a question here:\n" + CODE}],
    ]
    requests = [chat_request(i, messages, "It is right.") for i, messages in enumerate(asked)]
    if repository is None:
        run = replay(requests, folder, None, tiers)
    else:
        from agentcache.context import Streams

        with Source([str(repository)], Streams(str(folder), 4096)) as source:
            run = replay(requests, folder, source, tiers)
    return {name: int(tally.reused.sum()) for name, tally in run.tallies.items()}


def test_indexed_code_is_reused_the_first_time_and_learned_code_the_second(
    folder: Path, repository: Path
) -> None:
    without, indexed = conversation(folder, None), conversation(folder, repository)
    code_tokens = LineEncoder.of_folder(folder).encode([CODE])[0].ids.size
    assert without["prefix"] == indexed["prefix"]
    assert without["agentcache"] > without["prefix"] + 0.8 * code_tokens
    assert indexed["agentcache"] > without["agentcache"] + 0.8 * code_tokens
    for counts in (without, indexed):
        assert counts["prefix"] <= counts["agentcache"] <= counts["upper"] + 16


def test_completions_of_text_and_of_token_ids_are_prompts_too(folder: Path) -> None:
    encoder = LineEncoder.of_folder(folder)
    tokens = [*encoder.head.tolist(), *encoder.encode([CODE])[0].ids.tolist()]
    bodies: list[dict[str, object]] = [{"prompt": CODE}, {"prompt": tokens}, {"prompt": ""}]
    requests = [Request(i, "t", 0.0, "completions", body, Answer()) for i, body in enumerate(bodies)]
    run = replay(requests, folder)
    first, second, empty = (served.prompt.tokens.tolist() for served in run.served)
    assert first == second == tokens
    assert len(empty) == len(encoder.head)
    assert run.tallies["prefix"].reused.sum() == (len(tokens) - 1) // 16 * 16


def test_code_of_the_index_is_told_from_other_text_in_every_turn(folder: Path, repository: Path) -> None:
    from agentcache.context import Streams

    talk: list[dict[str, object]] = [
        {"role": "user", "content": "Read it."},
        {"role": "assistant", "content": "I read."},
        {"role": "tool", "content": CODE},
    ]
    requests = [
        chat_request(0, talk, "Read."),
        chat_request(1, [*talk, {"role": "assistant", "content": "Read."}]),
    ]
    with Source([str(repository)], Streams(str(folder), 4096)) as source:
        run = replay(requests, folder, source)
    counts = [int((served.kinds == Kind.REFERENCED_CODE).sum()) for served in run.served]
    assert counts[0] == counts[1] > 100


def test_no_room_no_reuse(folder: Path, repository: Path) -> None:
    """With budgets that hold nothing, agentcache is prefix caching."""
    tiers = Tiers(0, 0, 1000)
    counts = conversation(folder, repository, tiers)
    assert counts["agentcache"] == counts["prefix"]


def test_tiers_keep_what_was_used_last() -> None:
    tiers = Tiers(ram_budget=200, disk_budget=300, bytes_per_token=10)
    assert tiers.add("a", 10) == tiers.add("b", 10) == tiers.add("c", 10) == []
    tiers.read([("a", 5)])  # left RAM when c came
    assert (tiers.use.tokens_from_ram, tiers.use.tokens_from_disk) == (0, 5)
    tiers.read([("a", 5)])
    assert tiers.use.tokens_from_ram == 5
    assert tiers.add("d", 10) == ["b"]
    assert tiers.add("e", 31) == ["e"]
    assert tiers.use.ram_bytes <= 200
    assert tiers.use.disk_bytes <= 300
