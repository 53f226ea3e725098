"""Source code of a language with a grammar: parse, scan, tile, and bound the size of every piece."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentcache.indexer.grammar import load, parse
from agentcache.indexer.parse import Parsed, assemble, bounded
from agentcache.indexer.recover import recovered
from agentcache.indexer.scan import Scan, scan
from agentcache.indexer.tiling import tile

if TYPE_CHECKING:
    from tree_sitter import Node


def parse_source(data: bytes, starts: list[int], language: str, deadline: float) -> Parsed:
    """Blocks, names and mentions of `data`. OutOfTime past `deadline`; ImportError without the grammar."""
    grammar, query = load(language)
    tree = parse(grammar, data, deadline)
    root = tree.root_node

    def scan_bytes(part: bytes, part_starts: list[int]) -> Scan:
        return scan(parse(grammar, part, deadline).root_node, query, part, part_starts, deadline)

    found = scan(root, query, data, starts, deadline)
    if root.has_error:
        found = recovered(found, data, starts, scan_bytes)
    ends = [*starts[1:], len(data)] if starts else []
    blank = [not data[start:end].strip() for start, end in zip(starts, ends, strict=True)]
    pieces = bounded(
        data, starts, tile(found.definitions, blank), lambda first, end: statement_rows(root, first, end)
    )
    names = [(item.name, item.kind, item.name_row) for item in found.definitions]
    return assemble(data, starts, pieces, names, found.mentions)


def statement_rows(root: Node, first: int, end: int, max_levels: int = 24) -> list[list[int]]:
    """Rows in (first, end) on which a node starts its line, as cumulative levels: the shallowest nodes first.

    What is shallow is a statement of the longest body; deeper levels cut inside statements, and no level cuts
    inside a token such as a string.
    """
    depth_of: dict[int, int] = {}
    cursor = root.walk()
    depth = 0
    while True:
        node = cursor.node
        assert node is not None
        row = node.start_point[0]
        if row < end and node.end_point[0] >= first:
            if row > first and node.is_named and depth < depth_of.get(row, depth + 1):
                depth_of[row] = depth
            if node.end_point[0] > row and cursor.goto_first_child():
                depth += 1
                continue
        while not cursor.goto_next_sibling():
            if not cursor.goto_parent():
                return _levels(depth_of, max_levels)
            depth -= 1


def _levels(depth_of: dict[int, int], max_levels: int) -> list[list[int]]:
    depths = sorted(set(depth_of.values()))[:max_levels]
    return [sorted(row for row, depth in depth_of.items() if depth <= limit) for limit in depths]
