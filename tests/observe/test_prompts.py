"""Finding the earlier prompt that a new one is most like."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from agentcache.entry import Tokens, as_tokens
from agentcache.observe.prompts import Prompts

PAGE = 4


def pages(tokens: Tokens, namespace: str = "") -> list[Hashable]:
    """As vLLM does: a full page is known by everything up to its end."""
    return [(namespace, tokens[:stop].tobytes()) for stop in range(PAGE, len(tokens) + 1, PAGE)]


def add(prompts: Prompts, name: str, ids: list[int], namespace: str = "") -> None:
    tokens = as_tokens(ids)
    prompts.keep(name, tokens, pages(tokens, namespace), namespace)


def test_it_is_compared_with_the_prompt_that_shares_most_pages() -> None:
    prompts = Prompts()
    add(prompts, "close", [1, 2, 3, 4, 5, 6, 7, 8, 9, 9])
    add(prompts, "far", [1, 2, 3, 4, 0, 0, 0, 0, 0, 0])
    tokens = as_tokens([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 1])
    parting = prompts.parting(tokens, pages(tokens), "")
    assert parting is not None
    assert (parting.other, parting.common) == ("close", 9)
    assert (parting.before[-2:], parting.now, parting.was) == ((8, 9), (1, 1), (9,))


def test_without_a_page_in_common_it_is_the_one_before() -> None:
    prompts = Prompts()
    add(prompts, "first", [5, 5, 5, 5])
    add(prompts, "second", [1, 2, 7, 7])
    tokens = as_tokens([1, 2, 3, 4])
    parting = prompts.parting(tokens, pages(tokens), "")
    assert parting is not None
    assert (parting.other, parting.common) == ("second", 2)


def test_a_conversation_that_went_on_and_a_repeated_prompt_broke_nothing() -> None:
    prompts = Prompts()
    add(prompts, "first", [1, 2, 3, 4, 5, 6])
    for ids in ([1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5]):
        tokens = as_tokens(ids)
        assert prompts.parting(tokens, pages(tokens), "") is None


def test_namespaces_never_see_each_other() -> None:
    prompts = Prompts()
    add(prompts, "theirs", [1, 2, 3, 4, 5, 6, 7, 8], "salt")
    tokens = as_tokens([1, 2, 3, 4, 9, 9, 9, 9])
    assert prompts.parting(tokens, pages(tokens, "mine"), "mine") is None


@settings(max_examples=60)
@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=24), min_size=1, max_size=30))
def test_it_never_holds_more_than_it_may_and_says_what_is_true(many: list[list[int]]) -> None:
    prompts = Prompts(max_prompts=5, max_tokens=60)
    kept: dict[str, list[int]] = {}
    for number, ids in enumerate(many):
        tokens = as_tokens(ids)
        parting = prompts.parting(tokens, pages(tokens), "")
        if parting is not None:
            other, common = kept[parting.other], parting.common
            assert ids[:common] == other[:common]
            assert ids[common] != other[common]
            assert parting.now[0] == ids[common]
            assert parting.was[0] == other[common]
        add(prompts, str(number), ids)
        kept[str(number)] = ids
        assert len(prompts) <= 5
        assert prompts.num_tokens <= 60
        assert len(prompts._page_of) <= 60 // PAGE


def test_ten_thousand_tokens_are_compared_by_their_pages_first() -> None:
    """No timing: what is looked at is bounded by pages, and one comparison of tokens."""
    prompts = Prompts()
    base = np.arange(10_000, dtype=np.int32)
    for number in range(20):
        changed = base.copy()
        changed[5_000 + number] = -1
        prompts.keep(str(number), changed, [("page", number, at) for at in range(600)], "")
    parting = prompts.parting(base, [("page", 7, 599)], "")
    assert parting is not None
    assert (parting.other, parting.common) == ("7", 5_007)


def test_the_next_turn_goes_on_with_the_answer() -> None:
    prompts = Prompts()
    add(prompts, "first", [1, 2, 3, 4, 5])
    whole = as_tokens([1, 2, 3, 4, 5, 6, 7, 8, 9])
    prompts.answered("first", whole[5:], pages(whole))
    assert prompts.num_tokens == 9
    grown = as_tokens([*whole.tolist(), 1, 1])
    assert prompts.parting(grown, pages(grown), "") is None
    other = as_tokens([*whole.tolist()[:8], 0, 1])
    parting = prompts.parting(other, pages(other), "")
    assert parting is not None
    assert parting.common == 8
    prompts.answered("unknown", whole, [])
    assert prompts.num_tokens == 9
