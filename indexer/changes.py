"""What an edit did to a file, block by block."""

from __future__ import annotations

from collections import Counter

from agentcache.indexer.records import Block, ChangeRecord


def change_record(path: str, before: list[Block], after: list[Block]) -> ChangeRecord:
    """What an edit did to a file's blocks. A block that is there as often as before is kept."""
    left = Counter(block.id for block in before)
    added, kept = [], []
    for block in after:
        if left[block.id] > 0:
            left[block.id] -= 1
            kept.append(block)
        else:
            added.append(block)
    removed = []
    for block in reversed(before):
        if left[block.id] > 0:
            left[block.id] -= 1
            removed.append(block)
    return ChangeRecord(path, added, removed[::-1], kept)
