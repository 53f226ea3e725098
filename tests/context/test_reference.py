"""References as text: every one can be written and read back, and none leads out of a root."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentcache.context.reference import MAX_LENGTH, Reference, readings
from agentcache.context.roots import Roots
from agentcache.errors import ReferenceError_
from tests.context.sources import write

_part = st.text(
    st.characters(codec="utf-8", exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=12
).filter(lambda part: part not in (".", ".."))
_path = st.lists(_part, min_size=1, max_size=4).map("/".join)
_name = st.from_regex(r"#?[a-zA-Z_]\w{0,9}(\.#?[a-zA-Z_]\w{0,9}){0,2}", fullmatch=True)
_lines = st.tuples(st.integers(1, 10**6), st.integers(0, 100)).map(lambda pair: (pair[0], pair[0] + pair[1]))
_reference = st.one_of(
    st.builds(Reference, _path),
    st.builds(lambda path, name: Reference(path, name=name), _path.filter(lambda p: p.count("#") < 4), _name),
    st.builds(lambda path, lines: Reference(path, lines=lines), _path, _lines),
)


@given(_reference, st.sampled_from(["", "repo", "a/b"]))
def test_what_is_written_is_among_what_is_read(reference: Reference, root: str) -> None:
    whole = Reference(reference.path, root, reference.name, reference.lines)
    assert whole in readings(str(whole), ["repo", "a/b"])


@given(st.text(max_size=40) | st.text(alphabet="./#:a1-\0\\~", max_size=30))
def test_any_text_is_read_or_refused_and_never_leads_upwards(text: str) -> None:
    try:
        found = readings(text, ["repo"])
    except ReferenceError_:
        return
    assert found
    for reference in found:
        assert not reference.path.startswith("/")
        assert ".." not in reference.path.split("/")


_SECRET = "the secret outside"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root beside a secret, with links that lead to it."""
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "secret.txt").write_text(_SECRET)
    (folder / "other").mkdir()
    (folder / "other" / "secret.txt").write_text(_SECRET)
    root = write(folder / "repo")
    (root / "link.txt").symlink_to("../secret.txt")
    (root / "linked").symlink_to("../other")
    (root / "loop").symlink_to("loop")
    return root


@pytest.mark.parametrize(
    ("reference", "why"),
    [
        ("../secret.txt", "leaves the indexed roots"),
        ("app/../../secret.txt", "leaves the indexed roots"),
        ("repo:../secret.txt", "leaves the indexed roots"),
        ("./../secret.txt#x", "leaves the indexed roots"),
        ("../secret.txt:1-2", "leaves the indexed roots"),
        ("/etc/passwd", "is absolute"),
        ("repo:/etc/passwd", "is absolute"),
        ("//etc/passwd", "is absolute"),
        (".//etc/passwd", "names no file"),
        ("link.txt", "leads out of the indexed roots through a link"),
        ("linked/secret.txt", "leads out of the indexed roots through a link"),
        ("loop", "names no file"),
        ("loop/secret.txt", "names no file"),
        ("~/secret.txt", "names no file"),
        ("other:secret.txt", "names no file"),
        ("file:///etc/passwd", "names no file"),
        ("%2e%2e/secret.txt", "names no file"),
        ("..\\secret.txt", "names no file"),
        ("shapes.py\0.txt", "NUL"),
        ("", "is empty"),
        ("#", "names no file"),
        (":", "names no file"),
        (".", "names no file"),
        ("\ud800", "no text that a path can be"),
        ("x/" * MAX_LENGTH, "longer than"),
        ("x" * MAX_LENGTH, "names no file"),
        ("{{7*7}}\n\x1b[31m", r"\n\x1b[31m names no file"),
    ],
)
@pytest.mark.parametrize("refresh", [True, False])
def test_hostile_references_are_refused_in_one_line_that_names_them(
    guarded: Path, reference: str, why: str, refresh: bool
) -> None:
    roots = Roots([guarded], refresh=True)
    roots.freshen()
    if not refresh:
        roots.close()
        roots = Roots([guarded], refresh=False)
    with pytest.raises(ReferenceError_) as caught:
        roots.snapshot(roots.locate(reference).root, reference)
    roots.close()
    message = str(caught.value)
    assert why in message
    assert "\n" not in message
    assert "\0" not in message
    assert len(message) < 500
    assert str(guarded) not in message  # a client learns no path of the server
    assert _SECRET not in message


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(
    st.lists(
        st.sampled_from(["..", ".", "repo", "other", "linked", "app", "secret.txt", "link.txt", ""]),
        max_size=6,
    )
)
def test_no_walk_over_real_folders_ends_at_the_secret(guarded: Path, parts: list[str]) -> None:
    with Roots([guarded]) as roots:
        try:
            located = roots.locate("/".join(parts))
            data, _ = roots.snapshot(located.root, located.reference.path)
        except ReferenceError_:
            return
        assert _SECRET.encode() not in data


def test_a_folder_that_became_a_link_since_it_was_indexed_leads_nowhere(tmp_path: Path) -> None:
    root = write(tmp_path / "repo", **{"inner/secret.txt": "mine\n"})
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text(_SECRET)
    with Roots([root]) as roots:
        roots.freshen()
        (root / "inner" / "secret.txt").unlink()
        os.rmdir(root / "inner")
        (root / "inner").symlink_to(outside)
        located = roots.locate("inner/secret.txt")
        with pytest.raises(ReferenceError_, match="through a link"):
            roots.snapshot(located.root, "inner/secret.txt")
        # Nor does an index that is told of the path take it in.
        located.root.index.refresh(["inner/secret.txt"])
        assert located.root.index.file("inner/secret.txt") is None
