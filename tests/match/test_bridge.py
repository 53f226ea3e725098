"""Numbered files whose numbers have moved: what stands between the numbers is found, the numbers are holes."""

from __future__ import annotations

import inspect
import shlex
import textwrap

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentcache.entry import EntryInfo, Tokens, as_tokens, entries_of_stream
from agentcache.learn.views import NUMBERS
from agentcache.match import Matcher
from agentcache.plan import RecomputePolicy, make_plan
from agentcache.plan.planner import reused_positions
from agentcache.plan.types import Span

DIGITS = {str(digit): 100 + digit for digit in range(10)}


def tokens_of(text: str) -> Tokens:
    """A tokenizer as models of code have: every digit a token, words and runs of anything else as they come."""
    ids: list[int] = []
    word = ""
    for letter in text + "\0":
        if word and (letter in DIGITS or letter in " \n\t\0:()." or word[-1] in " \n\t:()."):
            ids.append(1000 + hash_of(word) % 30_000)
            word = ""
        if letter in DIGITS:
            ids.append(DIGITS[letter])
        else:
            word += letter
    return as_tokens(ids)


def hash_of(word: str) -> int:
    return int.from_bytes(word.encode()[-6:], "big")


def numbered(lines: list[str], style: str, first: int = 1) -> str:
    return "".join(f"{NUMBERS[style](first + i)}{line}\n" for i, line in enumerate(lines))


def entries(lines: list[str], style: str, salt: str = "") -> list[EntryInfo]:
    """The file as the warm worker stores it: cut into blocks, here every 20 lines."""
    parts = [tokens_of(numbered(lines[i : i + 20], style, i + 1)) for i in range(0, len(lines), 20)]
    cuts = np.cumsum([0, *map(len, parts)]).tolist()
    return entries_of_stream("m", salt, np.concatenate(parts), cuts)


LINES = inspect.getsource(textwrap).splitlines()[:240]


@pytest.fixture(params=["tab", "cat-n", "colon", "colon-tight"])
def style(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def check(matcher: Matcher, known: list[EntryInfo], prompt: Tokens, spans: list[Span]) -> None:
    """What every consumer relies on."""
    by_id = {info.id: info for info in known}
    floor = 0
    for span in spans:
        info = by_id[span.entry]
        assert floor <= span.start < span.stop <= len(prompt)
        assert span.offset >= 0
        assert span.offset + span.length <= info.num_tokens
        assert span.shift == span.start - span.offset - info.position
        assert list(span.holes) == sorted(set(span.holes))
        assert all(span.start <= hole < span.stop for hole in span.holes)
        same = prompt[span.start : span.stop] == info.tokens[span.offset : span.offset + span.length]
        wrong = span.start + np.flatnonzero(~same)
        assert set(wrong.tolist()) <= set(span.holes), "every token that is no hole is the entry's"
        assert not (span.exact and span.holes)
        floor = span.stop


def share(spans: list[Span], prompt: Tokens) -> float:
    plan = make_plan(len(prompt), 0, spans, RecomputePolicy())
    return len(reused_positions(plan)) / len(prompt) if plan else 0.0


def test_a_line_inserted_at_the_top_leaves_the_rest_usable(style: str) -> None:
    matcher, known = Matcher(), entries(LINES, style)
    for info in known:
        matcher.add(info)
    prompt = tokens_of("Look:\n" + numbered([*LINES[:3], "a = new_line()", *LINES[3:]], style))
    plainly = matcher.match(prompt)
    joined = matcher.match(prompt, joined=True)
    check(matcher, known, prompt, joined)
    assert share(plainly, prompt) < 0.2, "windows of sixteen tokens find next to nothing"
    assert share(joined, prompt) > 0.6
    assert all(span.length > 0 for span in joined)


def test_the_numbers_are_recomputed(style: str) -> None:
    matcher, known = Matcher(), entries(LINES, style)
    for info in known:
        matcher.add(info)
    prompt = tokens_of(numbered([*LINES[:3], "a = new_line()", *LINES[3:]], style))
    plan = make_plan(len(prompt), 0, matcher.match(prompt, joined=True), RecomputePolicy())
    assert plan is not None
    holes = [hole for span in plan.spans for hole in span.holes]
    assert len(holes) > 100
    assert set(holes) <= set(plan.recompute.tolist())
    assert np.isin(prompt[holes], list(DIGITS.values())).mean() > 0.9


def test_an_unchanged_file_and_one_edited_line_are_found_as_ever(style: str) -> None:
    matcher, known = Matcher(), entries(LINES, style)
    for info in known:
        matcher.add(info)
    same = tokens_of(numbered(LINES, style))
    assert matcher.match(same, joined=True) == matcher.match(same)
    edited = tokens_of(numbered([*LINES[:50], "something = else_altogether(here)", *LINES[51:]], style))
    assert matcher.match(edited, joined=True) == matcher.match(edited)


def test_other_peoples_entries_are_not_joined_on(style: str) -> None:
    matcher = Matcher()
    stream = entries(LINES, style, "tenant")
    for info in stream:
        matcher.add(info)
    prompt = tokens_of(numbered(["new", *LINES], style))
    assert matcher.match(prompt, salts=("",), joined=True) == []
    assert matcher.match(prompt, salts=("tenant",), joined=True)


def test_a_file_in_between_ends_the_run() -> None:
    matcher = Matcher()
    other = inspect.getsource(shlex).splitlines()[:60]
    known = [*entries(LINES, "tab"), *entries(other, "raw")]
    for info in known:
        matcher.add(info)
    moved = numbered(["new", *LINES[:120]], "tab")
    prompt = tokens_of(moved + numbered(other, "raw") + moved)
    spans = matcher.match(prompt, joined=True)
    check(matcher, known, prompt, spans)
    whole = {info.id for info in entries(other, "raw")}
    assert sum(span.length for span in spans if span.entry in whole) > 0.95 * len(
        tokens_of(numbered(other, "raw"))
    )


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_whatever_was_edited_every_token_but_holes_is_the_entrys(data: st.DataObject) -> None:
    style = data.draw(st.sampled_from(["tab", "cat-n", "colon"]))
    lines = list(LINES[: data.draw(st.integers(5, 120))])
    matcher, known = Matcher(), entries(lines, style)
    for info in known:
        matcher.add(info)
    for _ in range(data.draw(st.integers(0, 4))):
        place = data.draw(st.integers(0, len(lines)))
        match data.draw(st.sampled_from(["insert", "delete", "repeat"])):
            case "insert":
                lines.insert(place, data.draw(st.sampled_from(["pass", "x = 12", LINES[10], LINES[40]])))
            case "delete":
                del lines[place : place + data.draw(st.integers(1, 30))]
            case _:
                lines[place:place] = lines[place : place + 25]
    first = data.draw(st.integers(1, 120))
    prompt = tokens_of(data.draw(st.sampled_from(["", "Look:\n"])) + numbered(lines, style, first))
    check(matcher, known, prompt, matcher.match(prompt, joined=True))
    start = data.draw(st.integers(0, max(0, len(prompt) - 1)))
    check(matcher, known, prompt, matcher.match(prompt, start=start, joined=True))
