"""Small traces in every format, and the model whose tokenizer is used."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agentcache.replay.trace import Answer, Request

CODE = '''"""Counting things."""

from collections import Counter


def count_words(text: str) -> Counter[str]:
    """How often each word of the text occurs, upper and lower case being the same word to us."""
    counts: Counter[str] = Counter()
    for word in text.split():
        counts[word.strip(".,;:").lower()] += 1
    return counts


def longest_word(text: str) -> str:
    """The longest word, and of several equally long ones the first that stands in the text."""
    return max(text.split(), key=len, default="")
'''


@pytest.fixture
def folder(model_folder: str) -> Path:
    return Path(model_folder)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    root.mkdir()
    (root / "counting.py").write_text(CODE)
    return root


def chat_request(
    number: int, messages: Sequence[dict[str, Any]], answer: str = "", source: str = "trace"
) -> Request:
    return Request(number, source, float(number), "chat", {"messages": list(messages)}, Answer(answer))


def write_lines(path: Path, records: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path
