"""Who defines a name, who mentions it, and which files matter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agentcache.indexer import Index
from tests.indexer.conftest import Repository

SAMPLES = Path(__file__).parents[2] / "fixtures" / "languages"


@pytest.fixture
def index(repository: Repository, open_index: Callable[..., Index]) -> Index:
    repository.write(
        "base.py", "class Base:\n    def run(self):\n        return 1\n\n\ndef helper():\n    pass\n"
    )
    repository.write(
        "user.py",
        "from base import Base, helper\n\n\nclass User(Base):\n    def run(self):\n        helper()\n"
        "        helper(); return helper()\n\n\ndef outer():\n    def inner():\n        pass\n    inner()\n",
    )
    repository.write("other.js", "import { helper } from './base';\n\nfunction other() {\n  helper();\n}\n")
    repository.write("lonely.md", "# helper\n")
    index = open_index(repository.root)
    index.update()
    return index


def test_find(index: Index) -> None:
    assert [(b.path, b.kind, b.qualified_name) for b in index.find("run")] == [
        ("base.py", "method", "Base.run"),
        ("user.py", "method", "User.run"),
    ]
    assert [(b.path, b.start_line) for b in index.find("User.run")] == [("user.py", 5)]
    assert [(b.kind, b.path) for b in index.find("helper")] == [
        ("section", "lonely.md"),
        ("function", "base.py"),
    ][::-1]
    assert [b.name for b in index.find("inner")] == ["outer"]
    assert index.find("Nowhere.run") == []
    assert index.find("") == []
    assert index.find("Run") == []


def test_similar_names(index: Index) -> None:
    assert index.similar_names("HELP") == ["helper"]
    assert index.similar_names("ru") == []
    assert index.similar_names('"; DROP') == []


def test_refs(index: Index) -> None:
    assert [(ref.path, ref.line, ref.block.qualified_name) for ref in index.refs("helper")] == [
        ("other.js", 1, ""),
        ("other.js", 4, "other"),
        ("user.py", 1, ""),
        ("user.py", 6, "User.run"),
        ("user.py", 7, "User.run"),
    ]
    assert [(ref.path, ref.line) for ref in index.refs("Base")] == [("user.py", 1), ("user.py", 4)]
    assert index.refs("nobody") == []


def test_importance(index: Index) -> None:
    rank = index.importance()
    assert next(iter(rank)) == "base.py"
    assert sorted(rank) == ["base.py", "lonely.md", "other.js", "user.py"]
    assert sum(rank.values()) == pytest.approx(1)
    assert list(rank.values()) == sorted(rank.values(), reverse=True)


def test_importance_of_nothing_and_of_the_unconnected(
    tmp_path: Path, open_index: Callable[..., Index]
) -> None:
    (tmp_path / "tree").mkdir()
    index = open_index(tmp_path / "tree", "other")
    index.update()
    assert index.importance() == {}
    (tmp_path / "tree" / "a.txt").write_text("a\n")
    (tmp_path / "tree" / "b.txt").write_text("b\n")
    index.update()
    assert index.importance() == pytest.approx({"a.txt": 0.5, "b.txt": 0.5})


@pytest.mark.parametrize(
    ("sample", "name", "lines"),
    [
        ("sample.js", "add", [43, 63]),
        ("sample.ts", "Base", [25]),
        ("sample.tsx", "Header", [12]),
        ("sample.go", "Square", [30, 31, 35]),
        ("sample.rs", "helper", [50]),
        ("Sample.java", "check", [50]),
        ("sample.c", "add", [49]),
        ("sample.cpp", "add", [52]),
        ("sample.cs", "IShape", [7]),
        ("sample.rb", "Base", [15]),
        ("sample.php", "add", [66, 71]),
        ("sample.scala", "sqrt", [42]),
        ("sample.swift", "release", [23]),
        ("sample.kt", "Square", [31, 34, 45, 58]),
        ("sample.lua", "add", [19]),
        ("sample.sh", "add", [14, 25]),
    ],
)
def test_mentions_in_every_language(sample: str, name: str, lines: list[int], tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    data = (SAMPLES / sample).read_bytes()
    (tmp_path / "tree" / sample).write_bytes(data)
    with Index.open(tmp_path / "tree", tmp_path / "x.db") as index:
        index.update()
        found = [ref.line for ref in index.refs(name)]
    assert found == lines
    text = data.decode().split("\n")
    assert all(name in text[line - 1] for line in found)
