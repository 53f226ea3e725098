"""Small traces in every format, and the model whose tokenizer is used."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentcache.replay.trace import Answer, Request

REAL = Path(__file__).parents[2].parent / "shared" / "traces"
"""What real agents sent, where it lies beside the repository."""

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


@pytest.fixture(scope="session")
def sources_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The source distribution of a package, from the package index."""

    def fetch(requirement: str) -> Path:
        folder = tmp_path_factory.mktemp("sdist")
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:"]
        done = subprocess.run(
            [*command, "-d", str(folder), requirement], capture_output=True, text=True, check=False
        )
        archives = list(folder.glob("*.tar.gz"))
        if not archives:
            pytest.skip(f"{requirement} cannot be had from the package index: {done.stderr.strip()[-200:]}")
        with tarfile.open(archives[0]) as archive:
            archive.extractall(folder, filter="data")
        archives[0].unlink()
        (root,) = folder.iterdir()
        return root

    return fetch


def real_trace(*names: str) -> list[Path]:
    paths = [REAL / f"{name}.jsonl.gz" for name in names]
    missing = [path.name for path in paths if not path.exists()]
    if missing:
        pytest.skip(f"the recorded traces are not here: {', '.join(missing)}")
    return paths
