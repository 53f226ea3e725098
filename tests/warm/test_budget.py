"""The budget: never exceeded, and what goes for something more urgent is what matters least."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agentcache.warm.budget import Budget

LIMIT, TOKEN = 1000, 10
calls = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 60), min_size=1), st.integers(0, 9)
    ),
    max_size=20,
)


@given(calls)
def test_it_is_never_exceeded_and_only_less_urgent_entries_go(
    asked: list[tuple[dict[str, int], int]],
) -> None:
    budget = Budget(LIMIT, TOKEN)
    ranks: dict[str, int] = {}
    for entries, rank in asked:
        before = budget.used_bytes
        victims = budget.hold(entries, rank)
        assert budget.used_bytes <= LIMIT
        if victims is None:
            assert budget.used_bytes == before
            continue
        assert not set(victims) & entries.keys()
        assert all(ranks[victim] > rank for victim in victims)
        left = [ranks[entry] for entry in ranks if entry in budget and entry not in entries]
        if victims and left:
            assert max(left) <= min(ranks[victim] for victim in victims), "the least urgent go first"
        for victim in victims:
            del ranks[victim]
        for entry in entries:
            assert entry in budget
            ranks[entry] = min(rank, ranks.get(entry, rank))


def test_what_nothing_wants_any_more_goes_before_everything_and_the_oldest_first() -> None:
    budget = Budget(LIMIT, TOKEN)
    assert budget.hold({"a": 40, "b": 30, "c": 30}, 3) == []
    assert budget.hold({"d": 10}, 3) is None, "as urgent as what is there"
    budget.demote(["b"])
    budget.demote(["a"])
    assert budget.hold({"d": 10}, 3) == ["b"]
    assert budget.hold({"a": 40}, 3) == [], "wanted again"
    assert budget.hold({"e": 40}, 3) is None


def test_nothing_is_dropped_where_that_is_not_allowed() -> None:
    budget = Budget(LIMIT, TOKEN)
    budget.hold({"a": 100}, 9)
    assert budget.hold({"b": 1}, 0, may_drop=False) is None
    assert "a" in budget
