"""Tiling, for any bytes in any language, also after any edit; and the bounds on every block's size."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentcache.indexer.languages import BY_NAME, SECTIONED
from agentcache.indexer.lines import is_wide, line_starts
from agentcache.indexer.parse import Parsed, parse_bytes

SAMPLES = Path(__file__).parents[2] / "fixtures" / "languages"
LANGUAGES = [*BY_NAME, *SECTIONED, "text"]
DATA = {path.name: path.read_bytes() for path in sorted(SAMPLES.iterdir())}
PIECES = (
    b"def f(x):\n", b"    return x\n", b"class A {\n", b"}\n", b"\r\n", b"\r", b"\n", b"\n\n", b"\0", b"\xff\xfe",
    b"\xef\xbb\xbf", b'"""', b"'", b"/*", b"*/", b"# a\n", b"// b\n", b"(", b")", b"{", b"\t", b"@a\n", b"```\n",
    b"=====\n", b"function g() {", b"\xc3\x28", "ä€😀".encode(), b"<?php\n", b"#if 1\n", b"EOF\n", b"<<EOF\n",
)  # fmt: skip
TEXTS = st.one_of(st.binary(max_size=300), st.lists(st.sampled_from(PIECES), max_size=40).map(b"".join))


def check(data: bytes, parsed: Parsed) -> None:
    blocks = parsed.blocks
    assert b"".join(data[b.start_byte : b.end_byte] for b in blocks) == data
    assert all(b.start_byte < b.end_byte for b in blocks)
    assert [b.start_byte for b in blocks] == [0, *(b.end_byte for b in blocks)][: len(blocks)]
    assert {b.start_byte for b in blocks} <= {0, *line_starts(data)}
    assert all(after.start_line == before.end_line + 1 for before, after in pairwise(blocks))
    if not is_wide(data):
        for block in blocks:
            assert block.start_line == data.count(b"\n", 0, block.start_byte) + 1
        assert all(0 <= name.ordinal < len(blocks) for name in parsed.names)
    for name in parsed.names:
        block = blocks[name.ordinal]
        assert block.start_line <= name.line <= block.end_line


@settings(max_examples=300, deadline=None)
@given(data=TEXTS, language=st.sampled_from(LANGUAGES))
def test_any_bytes_are_tiled(data: bytes, language: str) -> None:
    check(data, parse_bytes(data, language))


@settings(max_examples=300, deadline=None)
@given(
    name=st.sampled_from(sorted(DATA)),
    language=st.sampled_from([*LANGUAGES, None, None]),
    edits=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 30), TEXTS), min_size=1, max_size=4),
)
def test_samples_are_tiled_after_any_edit(
    name: str, language: str | None, edits: list[tuple[float, int, bytes]]
) -> None:
    from agentcache.indexer.languages import detect_language

    data = DATA[name]
    for place, removed, added in edits:
        at = int(place * len(data))
        data = data[:at] + added + data[at + removed :]
    check(data, parse_bytes(data, language or detect_language(name, data)))


def test_no_bytes_have_no_blocks() -> None:
    assert all(parse_bytes(b"", language).blocks == [] for language in LANGUAGES)


def test_a_byte_order_mark_belongs_to_the_first_block() -> None:
    data = b"\xef\xbb\xbfdef f():\n    pass\n"
    parsed = parse_bytes(data, "python")
    assert [(b.kind, b.name, b.start_byte) for b in parsed.blocks] == [("function", "f", 0)]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_wide_text_is_cut_between_characters(encoding: str) -> None:
    # U+0A0A holds the byte of a line feed twice.
    text = "\ufeff" + "".join(f"line {number} \u0a0a\n" for number in range(3000))
    data = text.encode(encoding)
    parsed = parse_bytes(data, "python")
    check(data, parsed)
    assert len(parsed.blocks) > 1
    assert "".join(data[b.start_byte : b.end_byte].decode(encoding) for b in parsed.blocks) == text


def long_function(count: int) -> list[bytes]:
    rng = random.Random(7)
    lines = [b"def long(x):\n"]
    while len(lines) < count:
        number = rng.randrange(10**9)
        lines += [b"    if x > %d:\n" % number, b'        x = """\n', b"text %d\n" % number, b'"""\n', b"\n"]
    return lines


def test_long_functions_split_at_statements() -> None:
    data = b"".join(long_function(6000))
    parsed = parse_bytes(data, "python")
    check(data, parsed)
    assert [b.name for b in parsed.blocks] == ["long"] * len(parsed.blocks)
    assert [b.kind for b in parsed.blocks] == ["function", *["function part"] * (len(parsed.blocks) - 1)]
    assert all(
        b.end_line - b.start_line < 1000 and b.end_byte - b.start_byte <= 64 * 1024 for b in parsed.blocks
    )
    assert all(data[b.start_byte :].startswith(b"    if ") for b in parsed.blocks[1:])


def test_an_edit_of_a_long_function_moves_no_other_cut() -> None:
    lines = long_function(9000)
    before = parse_bytes(b"".join(lines), "python").blocks
    lines[4501:4501] = [b"    y = 1\n"] * 7
    after = parse_bytes(b"".join(lines), "python").blocks
    gone = Counter(b.id for b in before) - Counter(b.id for b in after)
    assert 1 <= gone.total() <= 3 < len(before) - 3


@pytest.mark.parametrize("language", ["python", "javascript", "json", "text"])
def test_large_values_and_wide_lines_stay_within_bounds(language: str) -> None:
    data = b"{\n" + b"".join(b'  "key%d": "%s",\n' % (n, b"v" * (n % 700)) for n in range(5000)) + b"}\n"
    parsed = parse_bytes(data, language)
    check(data, parsed)
    assert all(
        b.end_line - b.start_line < 1000 and b.end_byte - b.start_byte <= 64 * 1024 for b in parsed.blocks
    )


def test_a_line_longer_than_a_block_is_a_block() -> None:
    data = b"a = 1\n" + b"x" * 200_000 + b"\nb = 2\n"
    parsed = parse_bytes(data, "text")
    check(data, parsed)
    assert [b.end_line - b.start_line for b in parsed.blocks] == [0, 0, 0]


def test_an_edit_of_plain_text_moves_no_other_window() -> None:
    rng = random.Random(3)
    lines = [b"%s\n" % (b"word " * rng.randrange(12)) for _ in range(4000)]
    before = parse_bytes(b"".join(lines), "text").blocks
    after = parse_bytes(b"".join([b"new first line\n", *lines]), "text").blocks
    gone = Counter(b.id for b in before) - Counter(b.id for b in after)
    assert len(before) > 20
    assert gone.total() <= 3


def half_typed(source: bytes, edit: str) -> bytes:
    at = source.index(b"\ndef ", len(source) // 3) + 1
    if edit == "half a definition":
        return source[:at] + b"def new(\n\n\n" + source[at:]
    if edit == "merge markers":
        return source[:at] + b"<<<<<<< ours\nx = 1\n=======\nx = 2\n>>>>>>> theirs\n" + source[at:]
    if edit == "open bracket":
        return source[:at] + b"x = (1, [2\n\n\n" + source[at:]
    return source[:at] + b'x = """\n\n\n' + source[at:]


@pytest.mark.parametrize("edit", ["half a definition", "merge markers", "open bracket", "open string"])
@pytest.mark.parametrize("name", ["ast.py", "inspect.py", "random.py", "tokenize.py", "os.py"])
def test_what_is_half_typed_hides_little(name: str, edit: str) -> None:
    import sysconfig

    source = (Path(sysconfig.get_path("stdlib")) / name).read_bytes()
    before = parse_bytes(source, "python")
    data = half_typed(source, edit)
    after = parse_bytes(data, "python")
    check(data, after)
    kept = Counter(b.id for b in before.blocks) & Counter(b.id for b in after.blocks)
    assert kept.total() >= 0.7 * len(before.blocks)
