"""The repository whose files are warm: its blocks as entries, the same that the warm worker makes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from agentcache.context import Stream, Streams
from agentcache.entry import INDEX_DOMAIN, EntryInfo, entries_of_stream
from agentcache.errors import IndexError_, UsageError
from agentcache.indexer import Block, Index
from agentcache.learn.views import RAW, View
from agentcache.replay.outcome import Origin
from agentcache.warm import items_of_index

MODEL = "replay"
"""Stands for the engine's fingerprint in the ids of entries: there is one model."""


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """An entry, where it comes from, and what to call it in a report."""

    info: EntryInfo
    origin: Origin
    label: str


class Source:
    """Indexed repositories. Close it: revisions are read into a temporary folder.

    where: `PATH` or `PATH@REVISION`; a revision's files are read from git, never from the work tree
    """

    def __init__(self, where: Sequence[str], streams: Streams) -> None:
        self._stack = ExitStack()
        self._streams = streams
        try:
            self._indexes = [self._open(text) for text in where]
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._stack.close()

    @property
    def num_files(self) -> int:
        return sum(len(index.files()) for index in self._indexes)

    def entries(self, view: View = RAW) -> Iterator[Known]:
        """Entries of every file behind what stands before each block, and of functions and methods alone, in the
        warm worker's order. Of other views than the raw one the files only: no agent numbers a method from 1."""
        for index in self._indexes:
            for item in items_of_index(index):
                if item.block is not None and view != RAW:
                    continue
                try:
                    data, blocks = index.snapshot(item.path)
                except IndexError_:
                    continue  # edited since it was indexed
                if item.block is None:
                    yield from self._of_file(item.path, data, blocks, view)
                else:
                    yield from self._alone(item.path, data, blocks, item.block)

    def lines(self) -> set[str]:
        """Every line of every file, without its end."""
        found: set[str] = set()
        for index in self._indexes:
            for record in index.files():
                with suppress(IndexError_):
                    found.update(index.read(record.path).decode(errors="replace").split("\n"))
        return found

    def _of_file(self, path: str, data: bytes, blocks: list[Block], view: View) -> Iterator[Known]:
        by_id = {block.id: block for block in blocks}
        if view != RAW:
            data, blocks = view.show(data, blocks)
        suffix = "" if view == RAW else f" ({view.name})"
        for stream in self._streams.of_file(data, blocks):
            names = [_label(path, by_id[block]) + suffix for block in stream.blocks]
            infos = _infos(stream)
            # blocks that got no token of their own have no entry: then labels are those of the file
            labels = names if len(names) == len(infos) else [path + suffix] * len(infos)
            yield from (Known(info, Origin.INDEX, label) for info, label in zip(infos, labels, strict=True))

    def _alone(self, path: str, data: bytes, blocks: list[Block], wanted: str) -> Iterator[Known]:
        for block in blocks:
            if block.id == wanted:
                stream = self._streams.alone(data, block)
                if stream is not None:
                    yield from (
                        Known(info, Origin.INDEX, f"{_label(path, block)} alone") for info in _infos(stream)
                    )
                return

    def _open(self, text: str) -> Index:
        path, revision = _split(text)
        if revision is None:
            index = self._stack.enter_context(Index.open(path))
        else:
            folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="agentcache-replay-")))
            tree = folder / "tree"
            tree.mkdir()
            _read_revision(path, revision, tree)
            index = self._stack.enter_context(Index.open(tree, folder / "index.db"))
        index.update(changes=False)
        return index


def _infos(stream: Stream) -> list[EntryInfo]:
    return entries_of_stream(MODEL, INDEX_DOMAIN, stream.tokens, stream.cuts)


def _label(path: str, block: Block) -> str:
    return f"{path}#{block.qualified_name or block.kind}"


def _split(text: str) -> tuple[Path, str | None]:
    """`PATH[@REVISION]`; a path that exists is one, whatever is in its name."""
    if Path(text).is_dir():
        return Path(text), None
    path, at, revision = text.rpartition("@")
    if at and revision and Path(path).is_dir():
        return Path(path), revision
    raise UsageError(f"the repository {text} does not exist; write PATH or PATH@REVISION")


def _read_revision(path: Path, revision: str, target: Path) -> None:
    from agentcache.indexer.checkout import GitRefused, find_checkout

    checkout = find_checkout(path)
    if checkout is None:
        raise UsageError(f"{path} is in no git repository: a revision can be read from one only")
    try:
        for name, data in checkout.files_at(revision):
            place = target / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
    except GitRefused as error:
        raise UsageError(f"git cannot read {revision} of {path}: {error}") from error
