"""What the server asks the warm worker about its entries and files, for the request log and the page."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, runtime_checkable

from agentcache.errors import IndexError_
from agentcache.indexer import Block
from agentcache.warm.index_source import IndexSource

MAX_FILES: Final = 5000
_FILES_S: Final = 3.0
"""How often files are told, at most: counting them takes a while in a large repository."""


@runtime_checkable
class NamesEntries(Protocol):
    """A source of jobs that knows what its entries are."""

    def names(self, entry_ids: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Entry id to `{"learned": words}` or the like, for those that are its own."""
        ...


class Answers:
    """Answers to `agentcache.plugin.routes.requests.Shown.wants`. Used on the warm worker's thread.

    sources: of the indexed repositories; others: asked what the entries are that no repository has
    """

    def __init__(self, sources: Sequence[IndexSource], others: Iterable[object] = ()) -> None:
        self._sources = sources
        self._others = [other for other in others if isinstance(other, NamesEntries)]
        self._blocks: dict[str, frozenset[str]] = {}  # by content id
        self._files_at = float("-inf")
        self._told: list[dict[str, Any]] | None = None

    def add(self, other: object) -> None:
        """Ask this one, too, if it knows names."""
        if isinstance(other, NamesEntries):
            self._others.append(other)

    def to(self, wants: Mapping[str, Any] | None) -> dict[str, Any]:
        """Body of `PUT /agentcache/told`; {} if there is nothing to tell."""
        answer: dict[str, Any] = {}
        if not wants:
            return answer
        if wants.get("names"):
            answer["names"] = self.names(wants["names"])
        now = time.monotonic()
        if wants.get("files") and now - self._files_at >= _FILES_S:
            self._files_at = now
            files, num_files = self.files()
            if files != self._told:
                answer |= {"files": files, "num_files": num_files}
                self._told = files
        return {key: value for key, value in answer.items() if value or key == "files"}

    def names(self, entry_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Those that are known. With several repositories a path begins with its root's name."""
        names: dict[str, dict[str, Any]] = {}
        for other in self._others:
            names.update(other.names(entry_ids))
        for source in self._sources:
            blocks: dict[str, dict[str, Block]] = {}
            for entry in entry_ids:
                owners = source.kept.owners(entry)
                if not owners:
                    continue
                path, alone = min(owners)
                if path not in blocks:
                    blocks[path] = _blocks_of(source, path)
                covered = (alone,) if alone else source.kept.blocks((path, alone), entry)
                block = next((blocks[path][one] for one in covered if one in blocks[path]), None)
                names[entry] = {"path": self._shown(source, path)}
                if block is not None:
                    names[entry] |= {"name": block.qualified_name or block.kind, "line": block.start_line}
        return names

    def files(self) -> tuple[list[dict[str, Any]], int]:
        """The largest files, and how many there are."""
        files: list[dict[str, Any]] = []
        for source in self._sources:
            warm = source.kept.warm_blocks
            records = sorted(source.index.files(), key=lambda record: -record.size)
            for record in records[:MAX_FILES]:
                if record.content_id not in self._blocks:
                    self._blocks[record.content_id] = frozenset(_blocks_of(source, record.path))
                blocks = self._blocks[record.content_id]
                files.append(
                    {
                        "path": self._shown(source, record.path),
                        "bytes": record.size,
                        "blocks": len(blocks),
                        "warm": len(blocks & warm),
                    }
                )
        if len(self._blocks) > 4 * MAX_FILES:
            self._blocks.clear()
        num_files = sum(len(list(source.index.files())) for source in self._sources)
        return sorted(files, key=lambda file: -file["bytes"])[:MAX_FILES], num_files

    def _shown(self, source: IndexSource, path: str) -> str:
        text = path.encode(errors="replace").decode()  # bytes that are no UTF-8 cannot be told in JSON
        return f"{source.index.root.name}/{text}" if len(self._sources) > 1 else text


def _blocks_of(source: IndexSource, path: str) -> dict[str, Block]:
    """Blocks of a file by id; none if it is gone."""
    try:
        return {block.id: block for block in reversed(source.index.blocks(path))}
    except IndexError_:
        return {}
