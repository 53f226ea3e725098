"""Which blocks are warm: asked of an engine, by the entries that their text would have."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from agentcache.context.streams import Streams
from agentcache.entry import INDEX_DOMAIN, entries_of_stream
from agentcache.indexer import Block


@dataclass(frozen=True, slots=True)
class EngineView:
    """What is to be known of an engine to ask it.

    fingerprint: of the model it serves; missing: those of some entries that it would have to compute
    streams: its tokenizer and its limit on a prompt
    """

    fingerprint: str
    missing: Callable[[Sequence[str]], set[str]]
    streams: Streams


@dataclass(frozen=True, slots=True)
class FileBlocks:
    """A file's bytes, all of its blocks, and the ids of those that are asked about."""

    data: bytes
    blocks: Sequence[Block]
    wanted: frozenset[str]


def warm_blocks(engine: EngineView, files: Iterable[FileBlocks]) -> set[str]:
    """Ids of the wanted blocks that need not be computed: with an entry behind the text that stands before them in
    their file now, or with one by themselves, or without a token of their own."""
    entries: defaultdict[str, set[str]] = defaultdict(set)
    warm: set[str] = set()
    for file in files:
        for block, entry in _entries(engine, file):
            entries[block].add(entry)
        warm |= {block for block in file.wanted if block not in entries}
    missing = engine.missing(sorted(set().union(*entries.values())) if entries else [])
    return warm | {block for block, candidates in entries.items() if candidates - missing}


def _entries(engine: EngineView, file: FileBlocks) -> Iterable[tuple[str, str]]:
    """Pairs of a wanted block and an entry that would hold it."""
    streams = engine.streams.of_file(file.data, file.blocks)
    alone = {block.id: block for block in file.blocks if block.id in file.wanted}
    streams += [stream for block in alone.values() if (stream := engine.streams.alone(file.data, block))]
    for stream in streams:
        infos = entries_of_stream(engine.fingerprint, INDEX_DOMAIN, stream.tokens, stream.cuts)
        for info, blocks in zip(infos, stream.covers, strict=True):
            for block in blocks:
                if block in file.wanted:
                    yield block, info.id
