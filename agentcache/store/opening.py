"""How a root gets its catalog, whatever state both are in."""

from __future__ import annotations

import sqlite3

from agentcache.store.catalog import Catalog
from agentcache.store.errors import catalog_reason, reason_of
from agentcache.store.reconcile import Reconciled, reconcile
from agentcache.store.root import Root
from agentcache.store.stats import Counts


def open_catalog(root: Root, errors: Counts) -> tuple[Catalog, Reconciled]:
    """The root's catalog, in agreement with the files. Call inside `root.exclusive()`.

    Where none can be kept, `root.refusal` says why, and the catalog is one in memory.
    """
    if not root.refusal:
        try:
            catalog, damaged = Catalog.open(root.path / "catalog.db")
            try:
                if damaged:
                    errors.add("catalog")
                return catalog, reconcile(root, catalog)
            except BaseException:
                catalog.close()
                raise
        except sqlite3.Error as error:
            root.refusal = catalog_reason(error)
        except OSError as error:
            root.refusal = reason_of(error)
    errors.add(root.refusal)
    catalog = Catalog.in_memory()
    return catalog, reconcile(root, catalog)
