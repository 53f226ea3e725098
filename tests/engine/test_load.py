"""Sixty-four agents for a few seconds, some of them rude. `benchmarks/load.py` does the same for a minute."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.engine.serving import SERVED, Server
from tests.engine.test_requests import eventually

pytestmark = pytest.mark.engine
BENCHMARKS = str(Path(__file__).resolve().parents[2] / "benchmarks")


def test_everybody_gets_a_right_answer_and_nothing_is_left(
    server: Server, texts: dict[str, list[int]]
) -> None:
    sys.path.insert(0, BENCHMARKS)
    try:
        from load import Load
    finally:
        sys.path.remove(BENCHMARKS)
    before = server.pages_used()
    pieces = [texts[name][:300] for name in ("textwrap", "argparse", "shlex")]
    report = Load(server.client.url, SERVED, pieces, longest=4096).run(agents=64, seconds=12.0)
    assert not report.unanswered, report.unanswered[:5]
    assert not report.bad_status, report.bad_status[:5]
    assert report.checked > 0
    assert report.wrong == 0, (
        f"{report.wrong} of {report.checked} differ from the quiet answers by {report.worst}"
    )
    assert min(report.asked.values()) > 0, report.asked
    assert eventually(lambda: server.pages_used() == before), "a page is still held after the last answer"
