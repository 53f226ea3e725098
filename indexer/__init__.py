"""Files to blocks: parse, tile, ignore rules, database, watch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentcache.indexer.index import Index
    from agentcache.indexer.records import (
        Block,
        ChangeRecord,
        FileRecord,
        IndexReport,
        Problem,
        Progress,
        Reference,
    )
    from agentcache.indexer.settings import IndexSettings
    from agentcache.indexer.watcher import Watcher

__all__ = [
    "Block",
    "ChangeRecord",
    "FileRecord",
    "Index",
    "IndexReport",
    "IndexSettings",
    "Problem",
    "Progress",
    "Reference",
    "Watcher",
]

_HOMES = {"Index": "index", "IndexSettings": "settings", "Watcher": "watcher"}


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is: parser processes need little of it, and start often."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'records')}"), name)
