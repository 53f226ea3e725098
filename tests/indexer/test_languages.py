"""Every language's sample, its blocks spelled out: "first-last line kind: scope > name"."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from tree_sitter import Parser

from agentcache.indexer.grammar import load
from agentcache.indexer.languages import BY_NAME, SECTIONED, detect_language
from agentcache.indexer.parse import parse_bytes

SAMPLES = Path(__file__).parents[2] / "fixtures" / "languages"

EXPECTED = {
    "Sample.java": (
        "java",
        """
        1-4 module head:
        5-14 class head: Sample
        15-20 constructor: Sample > Sample
        21-26 method: Sample > area
        27-28 method: Sample > area
        29-30 method: Sample > scale
        31-33 enum head: Sample > Color
        34-36 method: Sample.Color > next
        37-38 text: Sample.Color >
        39-39 class head: Sample > Inner
        40-40 method: Sample.Inner > run
        41-42 text: Sample.Inner >
        43-43 interface head: Sample > Visitor
        44-44 method: Sample.Visitor > visit
        45-45 text: Sample.Visitor >
        46-47 text: Sample >
        48-48 record head: Pair
        49-52 constructor: Pair > Pair
        53-55 method: Pair > sum
        56-57 text: Pair >
        58-60 annotation: Marker
        """,
    ),
    "sample.c": (
        "c",
        """
        1-4 module head:
        5-7 macro: SQUARE
        8-12 struct: point
        13-16 type: square_t
        17-18 enum: color
        19-23 union: bits
        24-25 type: callback
        26-31 text:
        32-38 function: add
        39-42 function: make_point
        43-43 text:
        44-44 function: debug
        45-46 text:
        47-50 function: main
        """,
    ),
    "sample.cpp": (
        "cpp",
        """
        1-3 module head:
        4-7 namespace head: shapes
        8-11 class head: shapes > Point
        12-12 method: shapes.Point > Point
        13-14 text: shapes.Point >
        15-20 method: shapes.Point > norm
        21-25 method: shapes.Point > as
        26-27 method: shapes.Point > operator==
        28-28 struct head: shapes.Point > Inner
        29-29 method: shapes.Point.Inner > run
        30-31 text: shapes.Point.Inner >
        32-35 text: shapes.Point >
        36-40 function: shapes > ~Point
        41-42 enum: shapes > Color
        43-47 function: shapes > add
        48-49 function: shapes > ref
        50-50 namespace head: shapes > detail
        51-53 function: shapes.detail > hidden
        54-55 text: shapes.detail >
        56-57 text: shapes >
        58-59 type: Alias
        60-63 function: twice
        64-67 function: exported
        68-70 union: Bits
        """,
    ),
    "sample.cs": (
        "csharp",
        """
        1-2 module head:
        3-4 namespace head: Shapes
        5-12 class head: Shapes > Sample
        13-18 constructor: Shapes.Sample > Sample
        19-20 method: Shapes.Sample > Sample
        21-22 property: Shapes.Sample > Side
        23-27 property: Shapes.Sample > Area
        28-29 property: Shapes.Sample > this
        30-36 method: Shapes.Sample > Scale
        37-38 method: Shapes.Sample > Scale
        39-40 method: Shapes.Sample > +
        41-42 enum: Shapes.Sample > Color
        43-44 type: Shapes.Sample > Callback
        45-46 class head: Shapes.Sample > Inner
        47-47 method: Shapes.Sample.Inner > Run
        48-48 text: Shapes.Sample.Inner >
        49-50 text: Shapes.Sample >
        51-52 interface head: Shapes > IShape
        53-53 method: Shapes.IShape > Scale
        54-55 text: Shapes.IShape >
        56-60 struct: Shapes > Point
        61-62 record head: Shapes > Pair
        63-63 method: Shapes.Pair > Sum
        64-64 text: Shapes.Pair >
        65-65 text: Shapes >
        """,
    ),
    "sample.css": (
        "css",
        """
        1-2 text:
        3-7 section: body
        8-12 section: h2
        13-17 section: @media print
        """,
    ),
    "sample.go": (
        "go",
        """
        1-9 module head:
        10-14 type: Shape
        15-19 type: Square
        20-20 text:
        21-23 type: ID
        24-26 type: Pair
        27-28 text:
        29-33 function: NewSquare
        34-39 method: Area
        40-43 function: Map
        44-47 function: handler
        48-48 method: String
        """,
    ),
    "sample.html": (
        "html",
        """
        1-2 text:
        3-5 section: head
        6-6 section: body
        7-8 section: h1
        9-13 section: section
        """,
    ),
    "sample.js": (
        "javascript",
        """
        1-5 module head:
        6-8 function: double
        9-16 function: add
        17-18 class head: Shape
        19-22 method: Shape > handler
        23-28 method: Shape > constructor
        29-30 method: Shape > area
        31-34 method: Shape > area
        35-38 method: Shape > walk
        39-39 method: Shape > ["computed"]
        40-41 text: Shape >
        42-45 function: later
        46-46 class head: Inline
        47-49 method: Inline > go
        50-51 text: Inline >
        52-55 function: generate
        56-59 function: legacy
        60-61 function: View
        62-62 suite head: shape
        63-63 test: shape > works
        64-64 text: shape >
        """,
    ),
    "sample.json": (
        "json",
        """
        1-1 text:
        2-2 section: name
        3-5 section: nested
        6-9 section: list
        """,
    ),
    "sample.kt": (
        "kotlin",
        """
        1-6 module head:
        7-8 interface head: HasArea
        9-9 method: HasArea > area
        10-11 text: HasArea >
        12-14 class head: Square
        15-18 constructor: Square > init
        19-22 constructor: Square > constructor
        23-25 property: Square > twice
        26-30 method: Square > area
        31-32 method: Square > scale
        33-33 object head: Square > companion
        34-34 method: Square.companion > unit
        35-36 text: Square.companion >
        37-39 enum head: Square > Color
        40-40 method: Square.Color > label
        41-41 text: Square.Color >
        42-43 text: Square >
        44-44 object head: Registry
        45-45 method: Registry > add
        46-47 text: Registry >
        48-49 class: Empty
        50-51 type: Pair2
        52-53 function: double
        54-57 function: top
        58-58 function: half
        """,
    ),
    "sample.lua": (
        "lua",
        """
        1-5 module head:
        6-11 function: add
        12-15 function: new
        16-21 function: area
        22-25 function: double
        26-29 function: triple
        30-34 text:
        """,
    ),
    "sample.md": (
        "markdown",
        """
        1-2 text:
        3-10 section: Shapes
        11-14 section: Shapes > Squares
        15-18 section: Shapes.Squares > Sides
        19-23 section: Shapes > Circles
        24-24 section: End
        """,
    ),
    "sample.php": (
        "php",
        """
        1-8 module head:
        9-11 interface head: HasArea
        12-12 method: HasArea > area
        13-14 text: HasArea >
        15-18 trait head: Named
        19-22 method: Named > name
        23-24 text: Named >
        25-34 class head: Square
        35-40 method: Square > __construct
        41-46 method: Square > area
        47-47 method: Square > unit
        48-49 text: Square >
        50-53 enum head: Color
        54-57 method: Color > label
        58-59 text: Color >
        60-64 function: add
        65-68 function: double
        69-69 function: triple
        70-71 text:
        """,
    ),
    "sample.py": (
        "python",
        """
        1-10 module head:
        11-14 function: double
        15-17 type: Pair
        18-26 function: plain
        27-34 function: decorated
        35-40 class head: Point
        41-45 method: Point > norm
        46-48 method: Point > norm
        49-49 class head: Point > Inner
        50-51 method: Point.Inner > method
        52-53 text: Point.Inner >
        54-55 text: Point >
        56-58 method: Point > key
        59-61 class: Empty
        62-62 text:
        63-65 function: conditional
        66-66 text:
        """,
    ),
    "sample.rb": (
        "ruby",
        """
        1-5 module head:
        6-7 namespace head: Area
        8-10 method: Area > area
        11-12 text: Area >
        13-13 namespace head: Outer
        14-19 class head: Outer > Square
        20-24 method: Outer.Square > initialize
        25-28 method: Outer.Square > unit
        29-29 class head: Outer.Square > self
        30-32 method: Outer.Square.self > zero
        33-34 text: Outer.Square.self >
        35-38 method: Outer.Square > side=
        39-40 method: Outer.Square > ==
        41-42 text: Outer.Square >
        43-46 method: Outer.Square > twice
        47-47 class: Outer.Square > Error
        48-48 text: Outer.Square >
        49-50 text: Outer >
        51-52 function: double
        53-55 function: top
        """,
    ),
    "sample.rs": (
        "rust",
        """
        1-5 module head:
        6-11 struct: Point
        12-17 enum: Color
        18-21 union: Bits
        22-23 type: Pair
        24-27 trait head: Area
        28-30 method: Area > area
        31-33 method: Area > twice
        34-35 text: Area >
        36-36 impl head: Point
        37-42 method: Point > new
        43-43 method: Point > later
        44-45 text: Point >
        46-48 impl head: Point
        49-51 method: Point > area
        52-53 text: Point >
        54-59 macro: square
        60-65 function: helper
        66-69 namespace head: tests
        70-73 function: tests > works
        74-75 text: tests >
        76-76 text:
        77-77 function: outside
        78-78 text:
        """,
    ),
    "sample.scala": (
        "scala",
        """
        1-4 module head:
        5-6 trait head: Area
        7-8 method: Area > area
        9-9 method: Area > twice
        10-11 text: Area >
        12-14 class head: Square
        15-16 method: Square > area
        17-18 method: Square > double
        19-23 method: Square > scale
        24-24 type: Square > Pair
        25-26 text: Square >
        27-29 object head: Square
        30-30 method: Square > apply
        31-32 text: Square >
        33-35 enum head: Color
        36-36 method: Color > label
        37-38 text: Color >
        39-40 class: Empty
        41-44 function: top
        45-45 object head: ordering
        46-46 method: ordering > compare
        47-48 text: ordering >
        49-49 extension head: extension
        50-50 method: extension > half
        """,
    ),
    "sample.sh": (
        "bash",
        """
        1-6 module head:
        7-12 function: add
        13-16 function: subtract
        17-17 text:
        18-18 function: conditional
        19-20 text:
        21-24 function: both
        25-25 text:
        """,
    ),
    "sample.sql": (
        "sql",
        """
        1-5 section: shape
        6-9 section: area
        10-11 section:
        12-12 section: shape_id
        """,
    ),
    "sample.swift": (
        "swift",
        """
        1-4 module head:
        5-7 protocol head: HasArea
        8-8 method: HasArea > area
        9-10 text: HasArea >
        11-14 class head: Square
        15-16 property: Square > sides
        17-21 constructor: Square > init
        22-25 method: Square > deinit
        26-31 method: Square > area
        32-33 method: Square > unit
        34-37 property: Square > subscript
        38-40 enum head: Square > Kind
        41-43 method: Square.Kind > label
        44-44 text: Square.Kind >
        45-46 text: Square >
        47-50 struct: Point
        51-51 extension head: Square
        52-54 method: Square > half
        55-56 text: Square >
        57-59 class head: Counter
        60-63 method: Counter > next
        64-65 text: Counter >
        66-67 type: Pair
        68-71 function: double
        72-74 function: add
        """,
    ),
    "sample.toml": (
        "toml",
        """
        1-2 text:
        3-6 section: project
        7-8 section: tool.x
        """,
    ),
    "sample.ts": (
        "typescript",
        """
        1-2 module head:
        3-7 interface: Shape
        8-9 type: Pair
        10-14 enum: Color
        15-16 text:
        17-17 function: pick
        18-18 function: pick
        19-22 function: pick
        23-27 class head: Square
        28-32 method: Square > onClick
        33-37 method: Square > constructor
        38-42 method: Square > area
        43-44 method: Square > scale
        45-45 method: Square > of
        46-49 method: Square > of
        50-50 method: Square > half
        51-52 text: Square >
        53-53 namespace head: Geometry
        54-55 function: Geometry > unit
        56-58 function: Geometry > zero
        59-60 text: Geometry >
        61-61 namespace head: other
        62-62 function: other > there
        63-64 text: other >
        65-65 class: Empty
        """,
    ),
    "sample.tsx": (
        "tsx",
        """
        1-2 module head:
        3-4 type: Props
        5-9 function: Header
        10-14 function: App
        15-15 class head: Legacy
        16-18 method: Legacy > render
        19-19 text: Legacy >
        """,
    ),
    "sample.txt": (
        "text",
        """
        1-4 text:
        """,
    ),
    "sample.yaml": (
        "yaml",
        """
        1-3 section: name
        4-10 section: jobs
        11-11 section: quoted key
        """,
    ),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_blocks_of_a_sample(name: str) -> None:
    language, expected = EXPECTED[name]
    data = (SAMPLES / name).read_bytes()
    assert detect_language(name, data) == language
    parsed = parse_bytes(data, language)
    assert parsed.note == ""
    spelled = [
        f"{b.start_line}-{b.end_line} {b.kind}: {b.scope} > {b.name}".replace("  >", "").replace(":  >", ":")
        if b.scope
        else f"{b.start_line}-{b.end_line} {b.kind}: {b.name}"
        for b in parsed.blocks
    ]
    assert [line.rstrip() for line in spelled] == textwrap.dedent(expected).strip().splitlines()
    assert b"".join(data[b.start_byte : b.end_byte] for b in parsed.blocks) == data


def test_every_language_has_a_sample() -> None:
    assert {language for language, _ in EXPECTED.values()} == {*BY_NAME, *SECTIONED, "text"}


@pytest.mark.parametrize("language", BY_NAME)
def test_samples_hold_no_syntax_error(language: str) -> None:
    grammar, _ = load(language)
    name = next(name for name, (its, _) in EXPECTED.items() if its == language)
    assert not Parser(grammar).parse((SAMPLES / name).read_bytes()).root_node.has_error


@pytest.mark.parametrize(
    ("path", "data", "language"),
    [
        ("run", b"#!/usr/bin/env python3\n", "python"),
        ("run", b"#!/usr/bin/env -S python3 -u\n", "python"),
        ("run", b"#! /bin/sh\n", "bash"),
        ("run", b"#!/usr/bin/perl\n", "text"),
        ("run", b"", "text"),
        ("Rakefile", b"", "ruby"),
        ("A.PY", b"", "python"),
        ("a.h", b"int f(void);\n", "c"),
        ("a.h", b"namespace a { int f(); }\n", "cpp"),
        ("a.h", b"class A;\n", "cpp"),
        ("a.unknown", b"x", "text"),
        ("folder.py/README", b"", "text"),
    ],
)
def test_the_language_of_a_file(path: str, data: bytes, language: str) -> None:
    assert detect_language(path, data) == language


def test_names_and_mentions_of_inner_functions() -> None:
    parsed = parse_bytes((SAMPLES / "sample.py").read_bytes(), "python")
    inner = next(name for name in parsed.names if name.name == "inner")
    assert parsed.blocks[inner.ordinal].name == "plain"
    assert ("Point", [64]) in [tuple(mention) for mention in parsed.mentions]


def test_a_comment_behind_code_stays_with_it() -> None:
    source = (
        b"x = 1  # about x\ndef f():\n    pass\n\n# apart\n\ndef g():\n    pass\n# about h\ndef h(): pass\n"
    )
    blocks = parse_bytes(source, "python").blocks
    assert [(b.kind, b.name, b.start_line) for b in blocks] == [
        ("module head", "", 1),
        ("function", "f", 2),
        ("text", "", 5),
        ("function", "g", 7),
        ("function", "h", 9),
    ]


def test_definitions_that_share_a_line_are_one_block() -> None:
    source = b"function a() {\n} function b() {\n}\nfunction c() {}\n"
    parsed = parse_bytes(source, "javascript")
    assert [(b.name, b.start_line, b.end_line) for b in parsed.blocks] == [("a", 1, 3), ("c", 4, 4)]
    assert [(name.name, name.ordinal) for name in parsed.names] == [("a", 0), ("b", 0), ("c", 1)]
