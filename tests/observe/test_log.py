"""The request log and the names of what requests reused: bounded, and honest about what is not known."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest

from agentcache.observe import log as log_module
from agentcache.observe import names as names_module
from agentcache.observe.log import KEPT, KEPT_SPANS, RequestLog
from agentcache.observe.names import Names


def record(number: int, spans: int = 1, parting: dict[str, Any] | None = None) -> dict[str, Any]:
    placed = [[10 * i, 10 * i + 9, f"e{number}.{i}", 1] for i in range(spans)]
    return {"request_id": str(number), "placed": placed, "parting": parting}


def test_the_latest_thousand_are_kept() -> None:
    log = RequestLog()
    for number in range(KEPT + 10):
        log.add(record(number))
    assert len(log) == KEPT
    assert log.num_added == KEPT + 10
    latest = log.latest(3, Names())
    assert [one["request_id"] for one in latest] == [str(KEPT + 9), str(KEPT + 8), str(KEPT + 7)]


def test_spans_are_bounded_over_all_and_the_oldest_lose_theirs() -> None:
    log = RequestLog()
    per_record = 500
    for number in range(KEPT_SPANS // per_record + 5):
        log.add(record(number, per_record))
    told = log.latest(KEPT, Names())
    assert sum(len(one["reused"]) for one in told) <= KEPT_SPANS
    assert len(told[0]["reused"]) == per_record
    assert told[-1]["reused"] == []


def test_what_broke_the_prefix_is_put_into_words_and_the_tokens_are_let_go() -> None:
    log = RequestLog()
    words = {1: "It is ", 2: "9:41", 3: "10:02"}

    def decode(tokens: Sequence[int]) -> str:
        return "".join(words[token] for token in tokens)

    log.decode = decode
    log.add(record(1, parting={"other": "0", "common": 7, "before": (1,), "now": (2,), "was": (3,)}))
    (told,) = log.latest(1, Names())
    assert told["broken"] == {
        "request_id": "0",
        "at_token": 7,
        "cause": "timestamp",
        "line": "It is",
        "now": "9:41",
        "was": "10:02",
    }
    assert "parting" not in told


def test_names_are_asked_for_once_and_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    names = Names()
    assert names.wanted(["a", "b"]) == ["a", "b"]
    assert names.wanted(["a", "b", "c"]) == ["c"], "the others have just been asked for"
    names.add({"a": {"path": "x.py", "name": "f"}})
    assert names.of("a") == {"path": "x.py", "name": "f"}
    assert names.of("b") == {}
    later = time.monotonic() + 60.0
    monkeypatch.setattr(names_module.time, "monotonic", lambda: later)
    assert names.wanted(["a", "b"]) == ["b"]


def test_names_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names_module, "KEPT", 3)
    names = Names()
    names.add({str(i): {"name": str(i)} for i in range(5)})
    assert [bool(names.of(str(i))) for i in range(5)] == [False, False, True, True, True]


def test_a_log_without_a_tokenizer_says_nothing_of_the_text() -> None:
    log = RequestLog()
    log.add(record(1, parting={"other": "0", "common": 7, "before": (1,), "now": (2,), "was": (3,)}))
    assert log.latest(1, Names())[0]["broken"]["now"] == ""
    assert log_module.KEPT == KEPT
