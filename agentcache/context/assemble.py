"""`Context`: references to code in, text that is warm out, within a budget of tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, get_args

from agentcache.context.pick import pick
from agentcache.context.roots import Root, Roots
from agentcache.context.streams import Streams
from agentcache.context.warmth import EngineView, FileBlocks, warm_blocks
from agentcache.errors import EngineError, UsageError
from agentcache.indexer import Block

Order = Literal["given", "stable", "importance"]
ORDERS: tuple[str, ...] = get_args(Order)
MAX_ITEMS = 1000
MAX_BYTES = 16 << 20
"""Of source text, in one answer."""
_BYTES_A_TOKEN = 3


@dataclass(frozen=True, slots=True)
class Item:
    """A run of a file's blocks.

    ref: as it was asked for; root, path: where it is; name: dotted, "" if the reference has none
    start_line, end_line: both belong to it; an empty file has lines 1 to 0
    text: as it is cached: bytes that are no UTF-8 are U+FFFD, nothing else differs from the file
    tokens: of the text by itself; blocks: their ids, in file order
    warm: whether nothing of it need be computed; None where no engine was asked, or it did not answer
    """

    ref: str
    root: str
    path: str
    name: str
    start_line: int
    end_line: int
    text: str
    tokens: int
    blocks: tuple[str, ...]
    warm: bool | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON; the text stands in the answer's."""
        return {
            "ref": self.ref,
            "root": self.root,
            "path": self.path,
            "name": self.name,
            "start_line": self.start_line,
            "end_line": self.end_line,
            "tokens": self.tokens,
            "warm": self.warm,
            "blocks": list(self.blocks),
        }


@dataclass(frozen=True, slots=True)
class Assembled:
    """Items in their order, their texts one behind the other (a line feed between where one does not end with one).

    tokens: of `text`; left_out: what the budget had no room for
    """

    text: str
    items: tuple[Item, ...]
    tokens: int
    left_out: tuple[Item, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "text": self.text,
            "items": [item.to_dict() for item in self.items],
            "tokens": self.tokens,
            "left_out": [{"ref": item.ref, "tokens": item.tokens} for item in self.left_out],
        }


@dataclass(frozen=True, slots=True)
class _Found:
    """An item with what sorting and asking need of its file."""

    item: Item
    importance: float
    start_byte: int
    data: bytes = field(repr=False)
    blocks: Sequence[Block] = field(repr=False)

    @property
    def place(self) -> tuple[str, str, int, int]:
        """The same whoever asks, and in whatever order."""
        return (self.item.root, self.item.path, self.start_byte, self.item.end_line)


class Context:
    """Source text by reference, from one or more indexed folders. Use as a context manager; any thread may use it.

    roots: folders, each indexed if it is not; or Roots, which are closed with this
    model: whose tokenizer counts tokens; "" counts three bytes as one, which is more than most tokenizers make of code
    engine: asked what is warm; its tokenizer counts
    Raises what `Roots` and `Streams` raise.
    """

    def __init__(
        self, roots: Iterable[str | Path] | Roots, *, model: str = "", engine: EngineView | None = None
    ) -> None:
        self._engine = engine
        self._streams = engine.streams if engine is not None else _streams(model)
        if isinstance(roots, Roots):
            self.roots = roots
            return
        self.roots = Roots([roots] if isinstance(roots, str | Path) else roots)
        self.roots.freshen()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.roots.close()

    @property
    def counts_exactly(self) -> bool:
        """Whether tokens are a tokenizer's, and not an estimate."""
        return self._streams is not None

    def count(self, text: str) -> int:
        """Tokens of `text` by itself."""
        if self._streams is None:
            return -(-len(text.encode(errors="replace")) // _BYTES_A_TOKEN)
        return self._streams.count(text)

    def item(self, reference: str) -> Item:
        """What one reference means. Raises ReferenceError_."""
        return self.get([reference]).items[0]

    def text(self, reference: str) -> str:
        """The text of what one reference means, and no more work than that takes. Raises ReferenceError_."""
        return self._find(reference, count=False).item.text

    def get(
        self, references: Sequence[str], token_budget: int | None = None, order: Order = "given"
    ) -> Assembled:
        """The text that all of `references` mean, each once, in an order:

        given       as asked for; what comes first is kept where the budget ends
        stable      by root, path and place: the same whatever order was asked for, so that prompts that grow or are
                    asked for anew keep their beginning; important files are kept where the budget ends
        importance  what the rest of the repository leans on most comes first, and is kept

        Raises ReferenceError_ for a reference that is no good, UsageError for a budget or order that is none.
        """
        if order not in ORDERS:
            raise UsageError(f"{order!r} is no order: use one of {', '.join(ORDERS)}")
        if token_budget is not None and token_budget < 1:
            raise UsageError("a token budget is at least 1")
        if len(references) > MAX_ITEMS:
            raise UsageError(f"{len(references)} references are too many: at most {MAX_ITEMS} at once")
        found = self._all(references)
        by_importance = sorted(found, key=lambda each: (-each.importance, each.place))
        wanted = found if order == "given" else by_importance
        room = token_budget
        while True:
            kept, left_out = _within(wanted, room)
            shown = sorted(kept, key=lambda each: each.place) if order == "stable" else kept
            text = _joined([each.item for each in shown])
            tokens = self.count(text)
            if token_budget is None or room is None or tokens <= token_budget or not kept:
                break
            room -= tokens - token_budget  # joined, texts may make a few tokens more than each by itself
        return Assembled(text, self._asked(shown), tokens, tuple(each.item for each in left_out))

    def _all(self, references: Sequence[str]) -> list[_Found]:
        """Each thing once, however it was named."""
        found: dict[tuple[str, str, int, int], _Found] = {}
        files: dict[tuple[str, str], tuple[bytes, list[Block]]] = {}
        size = 0
        for reference in references:
            each = self._find(reference, files)
            if each.place not in found:
                found[each.place] = each
                size += len(each.item.text)
            if size > MAX_BYTES:
                raise UsageError(f"more than {MAX_BYTES >> 20} MiB of text: ask for less at once")
        return list(found.values())

    def _find(
        self,
        text: str,
        files: dict[tuple[str, str], tuple[bytes, list[Block]]] | None = None,
        *,
        count: bool = True,
    ) -> _Found:
        root, reference = self.roots.locate(text)
        key = (root.name, reference.path)
        held = files.get(key) if files is not None else None
        data, blocks = held or self.roots.snapshot(root, reference.path)
        if files is not None:
            files[key] = (data, blocks)
        run, name = pick(reference, blocks, root)
        meant = [blocks[at] for at in run]
        # Decoded block by block, as they were when their K/V was computed.
        body = "".join(data[block.start_byte : block.end_byte].decode(errors="replace") for block in meant)
        item = Item(
            ref=text,
            root=root.name,
            path=reference.path,
            name=name,
            start_line=meant[0].start_line if meant else 1,
            end_line=meant[-1].end_line if meant else 0,
            text=body,
            tokens=self.count(body) if count else 0,
            blocks=tuple(block.id for block in meant),
        )
        start = meant[0].start_byte if meant else 0
        return _Found(item, _importance(root, reference.path) if count else 0.0, start, data, blocks)

    def _asked(self, found: Sequence[_Found]) -> tuple[Item, ...]:
        """The items, with what the engine says of them."""
        items = [each.item for each in found]
        if self._engine is None:
            return tuple(items)
        files: dict[tuple[str, str], FileBlocks] = {}
        for each in found:
            key = (each.item.root, each.item.path)
            before = files[key].wanted if key in files else frozenset()
            files[key] = FileBlocks(each.data, each.blocks, before | frozenset(each.item.blocks))
        try:
            warm = warm_blocks(self._engine, files.values())
        except EngineError:
            return tuple(items)  # what is not known of the engine keeps nobody from reading
        return tuple(replace(item, warm=warm.issuperset(item.blocks)) for item in items)


def _within(found: list[_Found], budget: int | None) -> tuple[list[_Found], list[_Found]]:
    """What fits, first come first served, and the rest."""
    if budget is None:
        return found, []
    kept, left_out, used = [], [], 0
    for each in found:
        if used + each.item.tokens <= budget:
            kept.append(each)
            used += each.item.tokens
        else:
            left_out.append(each)
    return kept, left_out


def _joined(items: Sequence[Item]) -> str:
    parts = []
    for at, item in enumerate(items):
        parts.append(item.text)
        if item.text and not item.text.endswith("\n") and at + 1 < len(items):
            parts.append("\n")
    return "".join(parts)


def _importance(root: Root, path: str) -> float:
    return root.importance().get(path, 0.0)


def _streams(model: str) -> Streams | None:
    if not model:
        return None
    from agentcache.context.streams import max_position
    from agentcache.models import resolve

    folder = resolve(model)
    return Streams(folder, max_position(folder) or 1 << 20)
