"""What `serve` shows of the engine's log."""

from __future__ import annotations

import json

import pytest

from agentcache.observe.engine_log import JSON_LOG, EngineLog, json_line, write_request

PREFIX = "(APIServer pid=30579) "


def shown(lines: list[str], *, verbose: bool = False, as_json: bool = False) -> list[str]:
    written: list[str] = []
    log = EngineLog(written.append, verbose=verbose, as_json=as_json)
    for line in lines:
        log(line)
    return written


def test_the_engines_own_warnings_are_shown_in_one_line_and_nothing_else() -> None:
    lines = [
        f"{PREFIX}INFO 11-30 08:00:57 [worker.py:22] agentcache: all is well",
        f"{PREFIX}WARNING 11-30 08:00:57 [shadow.py:90] agentcache: blending is off until restart: drift",
        f"{PREFIX}WARNING 11-30 08:00:57 [cpu.py:1] something of vLLM's",
    ]
    assert shown(lines) == ["note: blending is off until restart: drift"]
    assert shown(lines, verbose=True) == lines


def test_objects_are_found_behind_what_vllm_puts_in_front() -> None:
    line = json_line("request", prompt_tokens=3)
    (written,) = shown([PREFIX + line, f"{PREFIX}INFO chatter"], as_json=True)
    assert json.loads(written) == {**json.loads(line), "event": "request", "log": "agentcache"}


def test_with_json_every_line_is_an_object() -> None:
    lines = ["chatter", f"{PREFIX}WARNING 1 agentcache: careful", PREFIX + json_line("request")]
    written = [json.loads(line) for line in shown(lines, as_json=True, verbose=True)]
    assert [one["event"] for one in written] == ["engine", "engine", "request"]
    said: list[str] = []
    EngineLog(said.append, verbose=False, as_json=True).say('ready: "quotes"')
    assert json.loads(said[0])["message"] == 'ready: "quotes"'


def test_a_request_is_written_without_its_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = {"cause": "timestamp", "now": "secret", "was": "secret", "line": "secret"}
    record = {"request_id": "r", "prompt_tokens": 5, "placed": [[0, 1, "e", 0]], "broken": broken}
    write_request(record)
    assert capsys.readouterr().out == "", "not unless it is asked for"
    monkeypatch.setenv(JSON_LOG, "1")
    write_request(record)
    out = capsys.readouterr().out
    assert "secret" not in out
    assert json.loads(out)["broken_by"] == "timestamp"
