"""A map of the indexed roots: important files first, each with the names that can be referred to."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from agentcache.context.pick import whole
from agentcache.context.reference import shown
from agentcache.context.roots import Root, Roots
from agentcache.indexer import Block

_INDENT = "  "


def repo_map(
    roots: Roots, count: Callable[[str], int], token_budget: int, below: str = ""
) -> tuple[str, int, int]:
    """The map within a budget of tokens, how many files it shows, and how many there are.

    below: only files whose path, or root's name and path, begins with this
    A file of which only a part has room is shown in part; its last line says so.
    """
    parts: list[str] = []
    files = [each for each in _by_importance(roots) if _is_below(roots, *each, below)]
    used = num_shown = 0
    for root, path in files:
        lines = list(_outline(roots, root, path))
        section = "".join(lines)
        tokens = count(section)
        if used + tokens > token_budget:
            section, tokens = _beginning(lines, count, token_budget - used)
        if not section:
            break
        parts.append(section)
        num_shown += 1
        used += tokens
        if used >= token_budget:
            break
    return "".join(parts), num_shown, len(files)


def label_of(roots: Roots, root: Root, block: Block) -> str:
    """`path:10-20  method Class.name`: a reference to a block, and for a class to all of it, with what it is."""
    blocks = root.index.blocks(block.path)
    run = whole(blocks.index(block), blocks) if block in blocks else range(0)
    last = blocks[run[-1]].end_line if run else block.end_line
    label = shown(roots.label(root, block.path))
    return f"{label}:{block.start_line}-{last}  {described(block)}"


def described(block: Block) -> str:
    """What a block is, and its name."""
    return f"{block.kind.removesuffix(' head')} {shown(block.qualified_name)}".rstrip()


def _by_importance(roots: Roots) -> list[tuple[Root, str]]:
    ranked = [(rank, root, path) for root in roots for path, rank in root.importance().items()]
    ranked.sort(key=lambda each: (-each[0], each[1].name, each[2]))
    return [(root, path) for _, root, path in ranked]


def _is_below(roots: Roots, root: Root, path: str, below: str) -> bool:
    wanted = below.removeprefix("./").rstrip("/")
    if not wanted or wanted == ".":
        return True
    names = (path, f"{root.name}:{path}")
    return wanted in (root.name, *names) or any(name.startswith(f"{wanted}/") for name in names)


def _outline(roots: Roots, root: Root, path: str) -> Iterator[str]:
    """A line for the file, and an indented one for each named block."""
    if root.index.file(path) is None:
        return  # gone since the files were ranked
    blocks = root.index.blocks(path)
    yield f"{shown(roots.label(root, path))}\n"
    for at, block in enumerate(blocks):
        if block.name:
            depth = block.scope.count(".") + 1 if block.scope else 0
            last = blocks[whole(at, blocks)[-1]].end_line
            kind = block.kind.removesuffix(" head")
            indent = _INDENT * (depth + 1)
            yield f"{indent}{kind} {shown(block.name)} :{block.start_line}-{last}\n"


def _beginning(lines: list[str], count: Callable[[str], int], room: int) -> tuple[str, int]:
    """As many of the lines as fit, with a last one that says that there are more; "" if not even the first two do."""
    low, high = 0, len(lines)
    while low < high:
        middle = (low + high + 1) // 2
        if count(_cut(lines, middle)) <= room:
            low = middle
        else:
            high = middle - 1
    return (_cut(lines, low), count(_cut(lines, low))) if low > 1 else ("", 0)


def _cut(lines: list[str], kept: int) -> str:
    more = f"{_INDENT}… {len(lines) - kept} more\n" if kept < len(lines) else ""
    return "".join(lines[:kept]) + more
