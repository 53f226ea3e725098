"""Grammars and queries, loaded when a file first needs them; parsing under a time budget."""

from __future__ import annotations

import functools
import time
from importlib import import_module, resources
from typing import TYPE_CHECKING

from agentcache.indexer.languages import BY_NAME

if TYPE_CHECKING:
    from tree_sitter import Language, Point, Query, Tree

_SLICE = 1 << 16


class OutOfTime(Exception):
    """A parse or a query ran past its deadline."""


@functools.cache
def load(language: str) -> tuple[Language, Query]:
    """Grammar and definition query of a language of `languages.GRAMMARS`; any thread may use them.

    ImportError if its wheel is missing or does not fit the installed tree-sitter.
    """
    from tree_sitter import Language, Query

    row = BY_NAME[language]
    try:
        grammar = Language(getattr(import_module(row.module), row.function)())
    except (ValueError, AttributeError) as error:
        raise ImportError(f"{row.module}: {error}") from error
    folder = resources.files("agentcache.indexer").joinpath("queries")
    source = "".join(folder.joinpath(f"{name}.scm").read_text("utf-8") for name in row.queries)
    return grammar, Query(grammar, source)


def parse(grammar: Language, data: bytes, deadline: float) -> Tree:
    """Syntax tree of `data`. OutOfTime if `time.thread_time()` passes `deadline` first."""
    # A parser belongs to one thread, and its callbacks let others run: sharing one crashes the process.
    from tree_sitter import Parser

    def read(offset: int, _point: Point) -> bytes:
        return data[offset : offset + _SLICE]

    def late(_offset: int, _has_error: bool) -> bool:
        return time.thread_time() > deadline

    try:
        # tree-sitter reports progress only to readers that hand it slices.
        return Parser(grammar).parse(read, progress_callback=late)
    except ValueError as error:
        raise OutOfTime from error
