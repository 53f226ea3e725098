"""Files and blocks as token streams: what is cut where, and what is left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentcache.context import Streams
from agentcache.errors import ModelError
from agentcache.indexer import Index

SOURCE = '''"""A module."""

import os


def first(a):
    return os.path.join(a, "ä€😀")


class Second:
    """Doc."""

    def method(self):
        return first(self)
'''


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    root = tmp_path_factory.mktemp("repository")
    (root / "module.py").write_text(SOURCE)
    opened = Index.open(root, db_path=tmp_path_factory.mktemp("db") / "index.db")
    opened.update()
    return opened


def test_a_file_is_one_stream_cut_at_its_blocks(index: Index, model_folder: str) -> None:
    streams = Streams(model_folder, 4096)
    blocks = index.blocks("module.py")
    (stream,) = streams.of_file(index.read("module.py"), blocks)
    assert stream.blocks == tuple(block.id for block in blocks)
    assert stream.cuts[0] == 0
    assert stream.cuts[-1] == len(stream.tokens) == streams.count(SOURCE)
    assert len(stream.cuts) == len(blocks) + 1


def test_the_pieces_between_cuts_are_the_blocks(index: Index, model_folder: str) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(model_folder) / "tokenizer.json"))
    blocks = index.blocks("module.py")
    (stream,) = Streams(model_folder, 4096).of_file(index.read("module.py"), blocks)
    for block, start, stop in zip(blocks, stream.cuts, stream.cuts[1:], strict=False):
        text = tokenizer.decode(stream.tokens[start:stop].tolist(), skip_special_tokens=False)
        expected = SOURCE.encode()[block.start_byte : block.end_byte].decode()
        assert text.strip() == expected.strip(), "they differ at most in white space that joins two blocks"


def test_a_block_alone(index: Index, model_folder: str) -> None:
    streams = Streams(model_folder, 4096)
    (block,) = (one for one in index.blocks("module.py") if one.name == "first")
    stream = streams.alone(index.read("module.py"), block)
    assert stream is not None
    assert stream.cuts == (0, len(stream.tokens))
    assert stream.blocks == (block.id,)


def test_a_long_file_becomes_windows_cut_at_blocks(index: Index, model_folder: str) -> None:
    blocks = index.blocks("module.py")
    data = index.read("module.py")
    limit = 30
    windows = Streams(model_folder, limit).of_file(data, blocks)
    assert len(windows) > 1
    assert [block for window in windows for block in window.blocks] == [block.id for block in blocks]
    assert all(len(window.tokens) <= limit for window in windows)
    assert all(window.cuts[0] == 0 and window.cuts[-1] == len(window.tokens) for window in windows)


def test_an_empty_file_is_no_stream(model_folder: str) -> None:
    assert Streams(model_folder, 4096).of_file(b"", []) == []


def test_a_model_without_a_fast_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no fast tokenizer"):
        Streams(str(tmp_path), 100)
