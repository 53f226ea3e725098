"""From a reference to the run of blocks that it means.

What is warm is blocks, so nothing less is given: a range of lines means the blocks that hold them, whole, and a class
means its head and everything in it.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentcache.context.reference import Reference, shown
from agentcache.context.roots import Root, listed
from agentcache.errors import ReferenceError_
from agentcache.indexer import Block


def pick(reference: Reference, blocks: Sequence[Block], root: Root) -> tuple[range, str]:
    """Which of a file's `blocks` are meant, as a run of their numbers, and the dotted name found ("" for none).

    Raises ReferenceError_ where a name or a line is not there, or a name is there more than once.
    """
    if reference.lines is not None:
        return _holding(reference, blocks), ""
    if not reference.name:
        return range(len(blocks)), ""
    return _named(reference, blocks, root)


def _holding(reference: Reference, blocks: Sequence[Block]) -> range:
    assert reference.lines is not None
    first, last = reference.lines
    end = blocks[-1].end_line if blocks else 0
    if not 1 <= first <= last:
        raise ReferenceError_(f"{shown(str(reference))}: lines count from 1, and the first comes first")
    if first > end:
        raise ReferenceError_(f"{shown(str(reference))}: the file ends at line {end}")
    held = [at for at, block in enumerate(blocks) if block.start_line <= last and block.end_line >= first]
    return range(held[0], held[-1] + 1)


def _named(reference: Reference, blocks: Sequence[Block], root: Root) -> tuple[range, str]:
    """By the full dotted name, else by its end, else by what a block defines besides its own name."""
    name = reference.name
    found = [at for at, block in enumerate(blocks) if block.qualified_name == name]
    if not found:
        found = [
            at for at, block in enumerate(blocks) if block.name and block.qualified_name.endswith(f".{name}")
        ]
    if not found:
        inside = {block for block in root.index.find(name) if block.path == reference.path}
        found = [at for at, block in enumerate(blocks) if block in inside]
    if not found:
        alike = [
            block.qualified_name
            for block in blocks
            if block.name and name.rpartition(".")[2].lower() in block.name.lower()
        ]
        hint = f"; did you mean {listed(list(dict.fromkeys(alike)))}?" if alike else ""
        raise ReferenceError_(f"{shown(str(reference))}: nothing of that name is defined there{hint}")
    if len(found) > 1:
        named = [_candidate(reference, blocks[at]) for at in found]
        raise ReferenceError_(f"{shown(str(reference))} is ambiguous: {listed(named)}; say which")
    return whole(found[0], blocks), blocks[found[0]].qualified_name or name


def _candidate(reference: Reference, block: Block) -> str:
    """A reference that means this block alone, and the name that was found."""
    exact = Reference(reference.path, reference.root, lines=(block.start_line, block.end_line))
    return f"{exact} ({block.qualified_name})" if block.qualified_name != reference.name else str(exact)


def whole(at: int, blocks: Sequence[Block]) -> range:
    """The block at `at`, and if it is the head of a class or the like, what follows in its scope."""
    head = blocks[at]
    stop = at + 1
    if head.kind.endswith(" head") and head.name:
        scope = head.qualified_name
        while stop < len(blocks) and (
            blocks[stop].scope == scope or blocks[stop].scope.startswith(f"{scope}.")
        ):
            stop += 1
    return range(at, stop)
