"""Every entry of a model, for those who rebuild something from the store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from agentcache.entry import EntryInfo
from agentcache.store.catalog import Catalog
from agentcache.store.errors import EntryCorrupt
from agentcache.store.files import read_info
from agentcache.store.format import UnknownFormat
from agentcache.store.layout import EntryLayout
from agentcache.store.reconcile import entry_files, reconcile
from agentcache.store.root import Root
from agentcache.store.stats import Counts


def listed(root: Root, catalog: Catalog, model: str, seen: set[str], errors: Counts) -> Iterator[EntryInfo]:
    """From the catalog; rows that were changed are replaced by what their files say. `seen` gets the ids.

    sqlite3.Error as soon as the catalog fails.
    """
    damaged: list[str] = []
    for row in catalog.rows(model):
        if isinstance(row, str):
            damaged.append(row)
        elif row.info.id not in seen:
            seen.add(row.info.id)
            yield row.info
    if damaged:
        errors.add("catalog", len(damaged))
        catalog.delete_ids(model, damaged)
        reconcile(root, catalog)
        again = (row for row in catalog.rows(model) if not isinstance(row, str))
        yield from (row.info for row in again if row.info.id not in seen)


def listed_from_files(root: Root, model: str, layout: EntryLayout, seen: set[str]) -> Iterator[EntryInfo]:
    """From the headers of the files, except the ids in `seen`."""
    for path in entry_files(root, model):
        with suppress(EntryCorrupt, UnknownFormat, OSError):
            head, info = read_info(path)
            if (head.model, head.layout) == (model, layout) and info.id not in seen:
                seen.add(info.id)
                yield info
