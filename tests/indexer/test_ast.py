"""The whole standard library, against Python's own parser: every definition is found, with its decorators."""

from __future__ import annotations

import ast
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from agentcache.indexer.parse import Parsed, parse_bytes

LIBRARY = Path(sysconfig.get_path("stdlib"))

KNOWN = {
    # A line inside brackets, left of the body that it is in, ends that body for the grammar.
    "test/test_compile.py": {"test_weird_attribute_position_regressions: ends at 1337, not at 1350"},
}
"""What is not as `ast` has it, by file (Python 3.11's library), and why."""


class Wanted(NamedTuple):
    name: str
    first_line: int
    last_line: int
    is_class: bool


def wanted(tree: ast.Module) -> Iterator[Wanted]:
    """Top-level functions and classes, and the methods and classes in classes, at any depth of classes."""
    pending: list[ast.Module | ast.ClassDef] = [tree]
    while pending:
        for node in pending.pop().body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                assert node.end_lineno is not None
                yield Wanted(node.name, first, node.end_lineno, isinstance(node, ast.ClassDef))
                if isinstance(node, ast.ClassDef):
                    pending.append(node)


def missing(parsed: Parsed, tree: ast.Module, lines: list[bytes]) -> Iterator[str]:
    """What `parsed` does not have as `tree` has it."""
    starts: dict[tuple[str, int], int] = {}
    inner = {(name.name, name.line) for name in parsed.names}
    for at, block in enumerate(parsed.blocks):
        for line in range(block.start_line, block.end_line + 1):
            starts.setdefault((block.name, line), at)
    for item in wanted(tree):
        at = starts.get((item.name, item.first_line))
        if at is None:
            # Definitions that share a line with another one (`class A: def f(self): ...`) are names in its block.
            if not any((item.name, line) in inner for line in range(item.first_line, item.last_line + 1)):
                yield f"{item.name}: not found"
            continue
        block = parsed.blocks[at]
        above = lines[block.start_line - 1 : item.first_line - 1]
        if not all(line.lstrip().startswith(b"#") for line in above):
            yield f"{item.name}: starts at {block.start_line}, not at {item.first_line}"
        if not item.is_class:
            last = at
            while last + 1 < len(parsed.blocks) and parsed.blocks[last + 1].kind.endswith(" part"):
                last += 1
            end = parsed.blocks[last].end_line
            # `ast` sees no comments; one at the end of a body belongs to it.
            below = [line.strip() for line in lines[item.last_line : end]]
            if end < item.last_line or not all(line.startswith(b"#") for line in below if line):
                yield f"{item.name}: ends at {end}, not at {item.last_line}"


def test_the_whole_standard_library() -> None:
    found: dict[str, set[str]] = {}
    files = definitions = 0
    unparsable = set()
    for path in sorted(LIBRARY.rglob("*.py")):
        below = path.relative_to(LIBRARY).as_posix()
        if "site-packages" in path.parts:
            continue
        data = path.read_bytes()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(data)
        except (SyntaxError, ValueError):
            unparsable.add(below)
            continue
        files += 1
        definitions += sum(1 for _ in wanted(tree))
        parsed = parse_bytes(data, "python", budget_s=60)
        assert parsed.note == ""
        lacks = set(missing(parsed, tree, data.split(b"\n")))
        if lacks:
            found[below] = lacks
    assert files > 500
    assert definitions > 10_000
    unknown = {below: lacks - KNOWN.get(below, set()) for below, lacks in found.items()}
    assert {below: lacks for below, lacks in unknown.items() if lacks} == {}
    # What `ast` does not take either is broken on purpose, in the test suites.
    assert all("test" in below for below in unparsable), unparsable
