"""What broke a prefix, in words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcache.observe.difference import CAUSES, SHOWN, difference


@pytest.mark.parametrize(
    ("one", "other", "cause"),
    [
        ("Today is 2026-11-30.\n", "Today is 2026-12-01.\n", "timestamp"),
        ("now: 2026-11-30T07:35:11Z\n", "now: 2026-11-30T07:35:42Z\n", "timestamp"),
        ("Date: Mon Nov 30 07:35\n", "Date: Tue Dec 1 07:35\n", "timestamp"),
        ("at 1796022911 s", "at 1796022999 s", "timestamp"),
        ("time 9:59 now", "time 10:01 now", "timestamp"),
        ("cwd: /srv/me/a/b.py\n", "cwd: /srv/me/c/b.py\n", "path"),
        ("see utils.py\n", "see units.py\n", "path"),
        (r"in C:\work\one", r"in C:\work\two", "path"),
        ("turn 9 of many", "turn 10 of many", "counter"),
        ("tokens left: 1200\n", "tokens left: 1199\n", "counter"),
        ("1 file", "12 files", "counter"),
        ("id call_a8f3k2m9x1 done", "id call_b7f3k2m9x1 done", "identifier"),
        ("commit 784f8bd4 said", "commit 1ddf8cf2 said", "identifier"),
        (
            "s 550e8400-e29b-41d4-a716-446655440000",
            "s 550e8400-e29b-41d4-a716-446655440abc",
            "identifier",
        ),
        ("Please explain this.", "Please mend that.", "text"),
        ("def one(): pass", "class Two: pass", "text"),
        ("answer: 12", "answer: none", "text"),
    ],
)
def test_what_differs_is_named_by_its_kind(one: str, other: str, cause: str) -> None:
    at = next(i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    assert difference("head\n" + one[:at], one[at:], other[at:]).cause == cause
    assert difference(one[:at], other[at:], one[at:]).cause == cause, "the other way round"


def test_the_line_is_the_one_it_is_in_or_the_one_before_where_it_begins_one() -> None:
    assert difference("first\nToday is ", "Monday", "Friday").line == "Today is"
    assert difference("first\nsecond\n", "now", "was").line == "second"


@given(st.text(), st.text(), st.text())
def test_any_texts_have_a_short_answer(before: str, now: str, was: str) -> None:
    found = difference(before, now, was)
    assert found.cause in CAUSES
    assert max(len(found.line), len(found.now), len(found.was)) <= SHOWN
