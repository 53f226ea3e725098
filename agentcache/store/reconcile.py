"""Make the catalog say what the files say. The files are right.

Files without a row are adopted (their header is verified, their K/V is on the first read); rows without a
file are dropped; files with a damaged header are deleted. Other processes may write meanwhile, so each
change is checked once more inside its transaction: a process moves a file into place before it adds the
row, and deletes files inside a transaction.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from agentcache.errors import StoreError
from agentcache.store.catalog import Catalog, Row
from agentcache.store.errors import EntryCorrupt
from agentcache.store.files import read_info
from agentcache.store.format import Head, UnknownFormat
from agentcache.store.root import SUFFIX, Root, model_folder, salt_folder

_BATCH = 500


@dataclass(frozen=True, slots=True)
class Reconciled:
    """adopted: files that had no row; dropped: rows that had no file; corrupt: files deleted;
    foreign: files left alone, of another version or layout, or unreadable"""

    adopted: int
    dropped: int
    corrupt: int
    foreign: int


def reconcile(root: Root, catalog: Catalog) -> Reconciled:
    """Call inside `root.exclusive()`. sqlite3.Error if the catalog fails."""
    dead = root.sweep()
    known = {root.entry_path(model, salt, id): (model, id) for model, salt, id in _rows(catalog)}
    files = set(entry_files(root))
    adopted = corrupt = foreign = 0
    batch: list[tuple[Path, Head, Row]] = []
    for path in files - known.keys():
        try:
            head, row = _describe(root, path)
            catalog.register(head.model, head.layout.to_json())
        except EntryCorrupt:
            corrupt += 1
            with suppress(OSError):
                root.discard(path)
        except (UnknownFormat, StoreError, OSError):
            foreign += 1
        else:
            adopted += 1
            batch.append((path, head, row))
            if len(batch) == _BATCH:
                _adopt(catalog, batch)
                batch = []
    _adopt(catalog, batch)
    stale = [(path, *known[path]) for path in known.keys() - files]
    with catalog.transaction():
        for path, model, id in stale:
            if not path.exists():
                catalog.delete_ids(model, [id])
        if dead or not root.refusal:
            # after the adoption: a file whose writer died before its row was added stays counted throughout
            catalog.release_all_but(root.owners())
    return Reconciled(adopted, len(stale), corrupt, foreign)


def entry_files(root: Root, only: str | None = None) -> Iterator[Path]:
    """Every entry file under the root, of every model and salt, or of one model."""
    for model in _folders(root.path, 16) if only is None else [root.path / model_folder(only)]:
        for salt in _folders(model):
            for shard in _folders(salt, 2):
                with suppress(OSError), os.scandir(shard) as found:
                    for entry in found:
                        if entry.name.endswith(SUFFIX) and entry.is_file(follow_symlinks=False):
                            yield shard / entry.name


def _rows(catalog: Catalog) -> Iterator[tuple[str, str, str]]:
    for model in catalog.models():
        yield from ((model, salt, id) for salt, id in catalog.ids(model))


def _describe(root: Root, path: Path) -> tuple[Head, Row]:
    head, info = read_info(path)
    names = (model_folder(head.model), salt_folder(info.salt), info.id + SUFFIX)
    if names != (path.parts[-4], path.parts[-3], path.name):
        raise EntryCorrupt(f"{path.name} does not lie where it belongs")
    modified = path.stat().st_mtime
    return head, Row(info, head.file_bytes, modified, modified, 0)


def _adopt(catalog: Catalog, batch: list[tuple[Path, Head, Row]]) -> None:
    with catalog.transaction():
        for path, head, row in batch:
            if path.exists():
                catalog.upsert(head.model, [row])


def _folders(parent: Path, length: int | None = None) -> list[Path]:
    try:
        with os.scandir(parent) as found:
            return [
                parent / entry.name
                for entry in found
                if entry.is_dir(follow_symlinks=False) and (length is None or len(entry.name) == length)
            ]
    except OSError:
        return []
