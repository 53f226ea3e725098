"""How a root gets its catalog, whatever state both are in."""

from __future__ import annotations

import sqlite3

from agentcache.store.catalog import Catalog
from agentcache.store.errors import catalog_reason, reason_of
from agentcache.store.reconcile import Reconciled, reconcile, recover
from agentcache.store.root import Root
from agentcache.store.stats import Counts

SMALL = 20_000
"""Up to so many entries are compared with their files when the store is opened: about half a second."""


def open_catalog(root: Root, errors: Counts) -> tuple[Catalog, Reconciled | None]:
    """The root's catalog, and how it was made to agree with the files. Call inside `root.exclusive()`.

    None: what killed processes left has been mended, but a catalog of so many entries has not been compared with the
    files yet. Nothing wrong can be served meanwhile: files are looked at when they are read, whatever the catalog says.
    Where no catalog can be kept, `root.refusal` says why, and it is one in memory.
    """
    if not root.refusal:
        try:
            catalog, damaged = Catalog.open(root.path / "catalog.db")
            try:
                if damaged:
                    errors.add("catalog")
                recover(root, catalog)
                large = catalog.usage()[0] > SMALL
                return catalog, None if large else reconcile(root, catalog)
            except BaseException:
                catalog.close()
                raise
        except sqlite3.Error as error:
            root.refusal = catalog_reason(error)
        except OSError as error:
            root.refusal = reason_of(error)
    errors.add(root.refusal)
    catalog = Catalog.in_memory()
    recover(root, catalog)
    return catalog, reconcile(root, catalog)
