"""In which order an index is worth warming when nothing else is known."""

from __future__ import annotations

from collections.abc import Container

from agentcache.indexer import Block, Index
from agentcache.warm.queue import WarmItem

_NOT_ALONE = ("module head", "text", "section")
"""Kinds of blocks that nobody asks for by themselves."""
MIN_ALONE_BYTES = 128


def is_alone(block: Block, min_bytes: int = MIN_ALONE_BYTES) -> bool:
    """Whether anybody would ask for this block by itself."""
    return block.kind not in _NOT_ALONE and block.end_byte - block.start_byte >= min_bytes


def by_importance(index: Index) -> list[str]:
    """All indexed files, the ones that the others lean on most first."""
    importance = index.importance()
    return sorted((file.path for file in index.files()), key=lambda path: (-importance.get(path, 0.0), path))


def items_of_index(
    index: Index, min_alone_bytes: int = MIN_ALONE_BYTES, only: Container[str] | None = None
) -> list[WarmItem]:
    """Everything in an index (or the paths in `only`): files by importance, each followed by its functions and
    methods on their own."""
    items: list[WarmItem] = []
    for path in by_importance(index):
        if only is None or path in only:
            items.append(WarmItem(path))
            items += [
                WarmItem(path, block.id) for block in index.blocks(path) if is_alone(block, min_alone_bytes)
            ]
    return items
