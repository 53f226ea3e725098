"""Text by reference: byte for byte what is cached, within a budget, in an order."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import agentcache
from agentcache.context import Context, Streams
from agentcache.context.warmth import EngineView
from agentcache.entry import INDEX_DOMAIN, entries_of_stream
from agentcache.errors import EngineError, ReferenceError_, UsageError
from agentcache.indexer import Index
from tests.context.sources import MAIN, NOTES, SHAPES, write


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return write(tmp_path / "repo")


@pytest.fixture
def context(repo: Path, model_folder: str) -> Iterator[Context]:
    with Context(repo, model=model_folder) as context:
        yield context


def test_it_is_what_the_package_offers() -> None:
    assert agentcache.Context is Context


def test_a_file_is_given_byte_for_byte(context: Context, repo: Path) -> None:
    item = context.item("notes.txt")
    assert item.text.encode() == (repo / "notes.txt").read_bytes() == NOTES.encode()
    assert (item.start_line, item.end_line) == (1, 2)
    assert item.tokens == context.count(NOTES)
    assert item.warm is None


def test_bytes_that_are_no_text_are_given_as_they_are_cached(tmp_path: Path) -> None:
    root = write(tmp_path / "repo", **{"latin.py": "# caf\xe9\nx = 1\n".encode("latin-1")})
    with Context(root) as context:
        assert context.text("latin.py") == "# caf�\nx = 1\n"


@pytest.mark.parametrize(
    ("reference", "first", "last", "name"),
    [
        ("shapes.py#Circle", 6, 15, "Circle"),
        ("shapes.py#Circle.area", 12, 15, "Circle.area"),
        ("shapes.py#__init__", 9, 11, "Circle.__init__"),
        ("shapes.py#double", 21, 22, "double"),
        ("repo:shapes.py#Square.area", 17, 20, "Square.area"),
        ("./shapes.py:10", 9, 11, ""),
        ("shapes.py:10-13", 9, 15, ""),
        ("shapes.py:1-9999", 1, 22, ""),
        ("shapes.py", 1, 22, ""),
    ],
)
def test_names_and_lines_mean_whole_blocks(
    context: Context, reference: str, first: int, last: int, name: str
) -> None:
    item = context.item(reference)
    assert (item.start_line, item.end_line, item.name) == (first, last, name)
    assert item.text == "".join(SHAPES.splitlines(keepends=True)[first - 1 : last])


def test_every_block_can_be_referred_to_and_its_id_is_the_index_s(context: Context, repo: Path) -> None:
    with Index.open(repo) as index:
        for file in index.files():
            data, blocks = index.snapshot(file.path)
            for block in blocks:
                item = context.item(f"{file.path}:{block.start_line}-{block.end_line}")
                assert item.blocks == (block.id,)
                assert item.text.encode() == data[block.start_byte : block.end_byte]


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (
            "shapes.py#area",
            r"is ambiguous: shapes.py:12-15 \(Circle.area\), shapes.py:17-20 \(Square.area\); say which",
        ),
        ("shapes.py#circl", "did you mean Circle"),
        ("shapes.py#Triangle", "nothing of that name is defined there"),
        ("shapes.py:23-30", "the file ends at line 22"),
        ("shapes.py:9-3", "lines count from 1"),
        ("main.py", r"did you mean app/main.py\?"),
        ("elsewhere:shapes.py", "names no file that is indexed in repo"),
    ],
)
def test_a_reference_that_is_no_good_says_why(context: Context, reference: str, message: str) -> None:
    with pytest.raises(ReferenceError_, match=message) as caught:
        context.item(reference)
    assert reference.split("#")[0].split(":")[0] in str(caught.value)


def test_files_whose_names_look_like_references(tmp_path: Path) -> None:
    odd = {"a#b.py": "x = 1\n", "c:10-20": "y\n", "d.py:3": "z\n", "d.py": "one\ntwo\nthree\n"}
    with Context(write(tmp_path / "repo", **odd)) as context:
        assert context.text("a#b.py") == "x = 1\n"
        assert context.text("c:10-20") == "y\n"
        assert context.text("c:10-20:1") == "y\n"
        with pytest.raises(ReferenceError_, match="is ambiguous"):
            context.text("d.py:3")  # the file of this name, or a line of the other


def test_a_link_within_the_root_leads_to_the_file_s_own_path(repo: Path) -> None:
    (repo / "linked").symlink_to("app")
    (repo / "also.py").symlink_to("linked/main.py")
    with Context(repo) as context:
        for reference in ("linked/main.py", "also.py", "repo:linked/main.py#main"):
            assert context.item(reference).path == "app/main.py"


def test_several_roots(tmp_path: Path) -> None:
    one = write(tmp_path / "x" / "app", **{"only_one.py": "a = 1\n"})
    two = write(tmp_path / "y" / "app", **{"only_two.py": "b = 2\n"})
    three = write(tmp_path / "lib", **{"shapes.py": "c = 3\n"})
    with Context([one, two, three, one]) as context:
        assert [root.name for root in context.roots] == ["x/app", "y/app", "lib"]
        assert context.text("only_two.py") == "b = 2\n"
        assert context.text("lib:shapes.py") == "c = 3\n"
        assert context.item("y/app:shapes.py#double").root == "y/app"
        with pytest.raises(ReferenceError_, match=r"ambiguous: x/app:shapes.py, y/app:shapes.py, lib:shapes"):
            context.text("shapes.py")


def test_nothing_to_index_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at least one folder"):
        Context([])


def test_an_edit_is_seen_at_once(context: Context, repo: Path) -> None:
    assert context.text("shapes.py#double").endswith("2 * shape.area()\n")
    (repo / "shapes.py").write_text(SHAPES.replace("2 * shape", "3 * shape"))
    (repo / "new.py").write_text("def new():\n    pass\n")
    item = context.item("shapes.py#double")
    assert item.text.endswith("3 * shape.area()\n")
    with Index.open(repo) as index:
        index.update()
        assert item.blocks == (index.blocks("shapes.py")[-1].id,)
    assert context.text("new.py#new") == "def new():\n    pass\n"
    (repo / "new.py").unlink()
    with pytest.raises(ReferenceError_, match="is gone"):
        context.text("new.py")


def test_who_only_reads_says_that_a_file_has_changed_and_sees_it_once_it_is_indexed(repo: Path) -> None:
    from agentcache.context.roots import Roots

    with Index.open(repo) as index:
        index.update()
        with Context(Roots([repo], refresh=False)) as context:
            (repo / "shapes.py").write_text(SHAPES + "\n\ndef more():\n    pass\n")
            with pytest.raises(ReferenceError_, match="has changed since it was indexed"):
                context.text("shapes.py#double")
            index.refresh(["shapes.py"])
            assert context.text("shapes.py#more") == "def more():\n    pass\n"


REFERENCES = [
    "shapes.py#Circle",
    "shapes.py#double",
    "app/main.py",
    "notes.txt",
    "shapes.py#Square",
    "shapes.py:1-3",
]


def test_the_given_order_joins_texts_at_line_ends(context: Context) -> None:
    answer = context.get(["notes.txt", "app/main.py", "notes.txt"])
    assert answer.text == NOTES + "\n" + MAIN  # each once
    assert [item.ref for item in answer.items] == ["notes.txt", "app/main.py"]
    assert answer.tokens == context.count(answer.text)


@pytest.mark.parametrize("budget", [None, 60, 150])
@pytest.mark.parametrize("order", ["stable", "importance"])
def test_stable_and_importance_do_not_depend_on_how_it_was_asked(
    context: Context, order: str, budget: int | None
) -> None:
    answers = set()
    for _ in range(8):
        asked = random.sample(REFERENCES, len(REFERENCES))
        answer = context.get(asked, budget, order)  # type: ignore[arg-type]
        answers.add((answer.text, tuple(item.ref for item in answer.left_out)))
    assert len(answers) == 1


def test_stable_keeps_the_beginning_when_later_things_are_added(context: Context) -> None:
    few = context.get(["shapes.py#Circle", "app/main.py"], order="stable").text
    more = context.get(["shapes.py#double", "app/main.py", "shapes.py#Circle"], order="stable").text
    assert more.startswith(few)


def test_importance_puts_first_what_others_lean_on(context: Context) -> None:
    items = context.get(["app/main.py", "shapes.py"], order="importance").items
    assert [item.path for item in items] == ["shapes.py", "app/main.py"]
    kept = context.get(["app/main.py", "shapes.py#double"], 25, "importance")
    assert [item.path for item in kept.items] == ["shapes.py"]
    assert [item.ref for item in kept.left_out] == ["app/main.py"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(st.permutations(REFERENCES), st.integers(1, 300), st.sampled_from(["given", "stable", "importance"]))
def test_a_budget_is_kept(context: Context, asked: list[str], budget: int, order: str) -> None:
    answer = context.get(asked, budget, order)  # type: ignore[arg-type]
    assert answer.tokens == context.count(answer.text) <= budget
    assert sorted(item.ref for item in (*answer.items, *answer.left_out)) == sorted(asked)
    room = budget - sum(item.tokens for item in answer.items)
    joints = 2 * len(asked)  # joined, texts may make a token or two more than each by itself
    assert all(item.tokens > room - joints for item in answer.left_out)


def test_wrong_arguments_are_one_line(context: Context) -> None:
    with pytest.raises(UsageError, match="'best' is no order: use one of given, stable, importance"):
        context.get(["shapes.py"], order="best")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="at least 1"):
        context.get(["shapes.py"], token_budget=0)
    with pytest.raises(UsageError, match="at most 1000"):
        context.get(["shapes.py"] * 1001)


def test_without_a_model_tokens_are_estimated_from_above(repo: Path, context: Context) -> None:
    with Context(repo) as guess:
        assert not guess.counts_exactly
        assert guess.item("shapes.py").tokens >= context.item("shapes.py").tokens


def test_warm_is_what_the_engine_need_not_compute(repo: Path, model_folder: str) -> None:
    """Against the entries that the warm worker would have made, in the file's context and alone."""
    streams = Streams(model_folder, 2000)
    stored: set[str] = set()

    def missing(entries: Sequence[str]) -> set[str]:
        return set(entries) - stored

    def store(tokens: object, cuts: Sequence[int]) -> None:
        stored.update(info.id for info in entries_of_stream("print", INDEX_DOMAIN, tokens, cuts))  # type: ignore[arg-type]

    with Context(repo, engine=EngineView("print", missing, streams)) as context:
        asked = ["shapes.py#Circle", "shapes.py#double", "shapes.py", "app/main.py"]

        def warm() -> list[bool | None]:
            return [item.warm for item in context.get(asked).items]

        assert warm() == [False, False, False, False]
        root = next(iter(context.roots))
        data, blocks = root.index.snapshot("shapes.py")
        alone = streams.alone(data, blocks[-1])
        assert alone is not None
        store(alone.tokens, alone.cuts)
        assert warm() == [False, True, False, False]
        (stream,) = streams.of_file(data, blocks)
        store(stream.tokens, stream.cuts[:-2])
        assert warm() == [True, True, False, False]
        for file in ("shapes.py", "app/main.py"):
            for stream in streams.of_file(*root.index.snapshot(file)):
                store(stream.tokens, stream.cuts)
        assert warm() == [True, True, True, True]


def test_an_engine_that_does_not_answer_keeps_nobody_from_reading(repo: Path, model_folder: str) -> None:
    def missing(entries: Sequence[str]) -> set[str]:
        raise EngineError("gone")

    with Context(repo, engine=EngineView("print", missing, Streams(model_folder, 2000))) as context:
        (item,) = context.get(["app/main.py"]).items
        assert (item.text, item.warm) == (MAIN, None)
