"""What the tools do, without the protocol. Every error is one line that an agent can act on."""

from __future__ import annotations

from agentcache.context import Assembled, Context, Item
from agentcache.context.assemble import Order
from agentcache.context.outline import described, label_of, repo_map
from agentcache.context.reference import shown
from agentcache.context.roots import Root, listed
from agentcache.errors import UsageError
from agentcache.indexer import Reference

MAX_READ_BYTES = 256 << 10
"""Of text in one answer: more would fill most agents' windows."""
MAX_RESULTS = 200
MAX_MAP_TOKENS = 50_000
_MAX_LINE = 200
"""Characters of a source line that `references` shows."""


class Tools:
    """Answers from one `Context`. Any thread may use it."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def find_symbol(self, name: str, limit: int) -> str:
        """A line for each definition, important files first."""
        name = name.strip()
        limit = _checked_limit(limit)
        found = self._definitions(name)
        if not found:
            self._context.roots.freshen()
            found = self._definitions(name)
        if not found:
            similar = [other for root in self._context.roots for other in root.index.similar_names(name)]
            hint = f"; similar names: {listed(similar)}" if similar else ""
            raise UsageError(f"nothing called {shown(name)} is defined here{hint}")
        return _lines(found, limit)

    def read_block(self, reference: str) -> Item:
        """A definition, or the blocks that hold some lines."""
        return self._checked(self._context.item(reference))

    def read_file(self, path: str, start_line: int | None, end_line: int | None) -> Item:
        """A file, or the blocks that hold some of its lines."""
        if start_line is None and end_line is None:
            return self._checked(self._context.item(path))
        first = start_line or 1
        return self._checked(self._context.item(f"{path}:{first}-{end_line or max(first, 10**9 - 1)}"))

    def references(self, name: str, limit: int) -> str:
        """A line for each mention, important files first."""
        name = name.strip()
        limit = _checked_limit(limit)
        found = self._mentions(name)
        if not found:
            self._context.roots.freshen()
            found = self._mentions(name)
        if not found:
            raise UsageError(
                f"nothing here mentions {shown(name)}; find_symbol says whether it is defined at all"
            )
        shown_lines = [self._mention(root, reference) for root, reference in found[:limit]]
        return _lines(shown_lines, limit, len(found))

    def repo_map(self, token_budget: int, path: str) -> str:
        """Names and line ranges, important files first."""
        if not 50 <= token_budget <= MAX_MAP_TOKENS:
            raise UsageError(f"a map has a budget of 50 to {MAX_MAP_TOKENS} tokens, not {token_budget}")
        roots = self._context.roots
        text, num_shown, num_files = repo_map(roots, self._context.count, token_budget, path)
        if not num_files:
            raise UsageError(f"no indexed file is below {shown(path)}: see repo_map without a path")
        more = num_files - num_shown
        return f"{text}… {more} more files: raise token_budget, or give a path\n" if more else text

    def context(self, references: list[str], token_budget: int | None, order: Order) -> Assembled:
        """Several things at once, in an order."""
        answer = self._context.get(references, token_budget, order)
        if (size := len(answer.text.encode())) > MAX_READ_BYTES:
            raise UsageError(
                f"{size >> 10} KiB are more than {MAX_READ_BYTES >> 10} KiB: give a token_budget, or fewer references"
            )
        return answer

    def _definitions(self, name: str) -> list[str]:
        found = [
            (root.importance().get(block.path, 0.0), root, block)
            for root in self._context.roots
            for block in root.index.find(name)
        ]
        found.sort(key=lambda each: (-each[0], each[1].name, each[2].path, each[2].start_line))
        return [label_of(self._context.roots, root, block) for _, root, block in found[: MAX_RESULTS + 1]]

    def _mentions(self, name: str) -> list[tuple[Root, Reference]]:
        found = [(root, mention) for root in self._context.roots for mention in root.index.refs(name)]
        found.sort(
            key=lambda each: (
                -each[0].importance().get(each[1].path, 0.0),
                each[0].name,
                each[1].path,
                each[1].line,
            )
        )
        return found

    def _mention(self, root: Root, mention: Reference) -> str:
        label = shown(self._context.roots.label(root, mention.path))
        where = described(mention.block)
        return f"{label}:{mention.line}  in {where}: {self._source_line(root, mention)}"

    def _source_line(self, root: Root, mention: Reference) -> str:
        data, _ = self._context.roots.snapshot(root, mention.path)
        lines = data.split(b"\n")
        line = lines[mention.line - 1].decode(errors="replace").strip() if mention.line <= len(lines) else ""
        return shown(line[:_MAX_LINE])

    def _checked(self, item: Item) -> Item:
        size = len(item.text.encode())
        if size > MAX_READ_BYTES:
            path = shown(item.path)
            raise UsageError(
                f"{path} lines {item.start_line}-{item.end_line} are {size >> 10} KiB, more than "
                f"{MAX_READ_BYTES >> 10} KiB: ask for fewer lines, or for a name (repo_map of {path} lists them)"
            )
        return item


def _checked_limit(limit: int) -> int:
    if not 1 <= limit <= MAX_RESULTS:
        raise UsageError(f"limit is 1 to {MAX_RESULTS}, not {limit}")
    return limit


def _lines(found: list[str], limit: int, total: int | None = None) -> str:
    """One a line, and how many are not shown."""
    more = (len(found) if total is None else total) - limit
    tail = f"… {more} more: raise limit\n" if more > 0 else ""
    return "".join(f"{line}\n" for line in found[:limit]) + tail
