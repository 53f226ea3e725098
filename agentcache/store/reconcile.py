"""Make the catalog say what the files say. The files are right.

`recover` mends what a killed process can have left: looked up among the reservations, whatever the store's size.
`reconcile` compares everything, folder by folder: files without a row are adopted (their header is verified, their
K/V is on the first read); rows without a file are dropped; files with a damaged header are deleted. Other processes
may write meanwhile, so each change is checked once more inside its transaction: a process moves a file into place
before it adds the row, and deletes files inside a transaction.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from agentcache.entry import EntryInfo
from agentcache.errors import StoreError
from agentcache.store.catalog import Catalog
from agentcache.store.errors import EntryCorrupt
from agentcache.store.files import read_info
from agentcache.store.format import Head, UnknownFormat
from agentcache.store.root import SUFFIX, Root, model_folder, salt_folder
from agentcache.store.rows import Row

_SHARDS = frozenset(f"{shard:02x}" for shard in range(256))
_folder_of = lru_cache(4096)(salt_folder)


@dataclass(slots=True)
class Reconciled:
    """adopted: files that had no row; dropped: rows that had no file; corrupt: files deleted;
    foreign: files left alone, of another version or layout, or unreadable"""

    adopted: int = 0
    dropped: int = 0
    corrupt: int = 0
    foreign: int = 0


@dataclass(slots=True)
class _Shard:
    """Files and rows of one model whose ids start alike."""

    files: set[Path] = field(default_factory=set)
    rows: dict[Path, tuple[str, str]] = field(default_factory=dict)


def recover(root: Root, catalog: Catalog) -> None:
    """Adopt or give up what killed processes were writing. Call inside `root.exclusive()`."""
    dead = root.sweep()
    if not dead and root.refusal:
        return
    for orphan in catalog.orphans(root.owners()):
        path = root.entry_path(orphan.model, orphan.salt, orphan.id)
        found = _described(root, path, Reconciled()) if orphan.id and path.exists() else None
        with catalog.transaction():
            if found is not None and path.exists():
                catalog.upsert(orphan.model, [found[1]])
            catalog.release(orphan.key)


def reconcile(
    root: Root,
    catalog: Catalog,
    *,
    stopped: Callable[[], bool] = lambda: False,
    adopted: Callable[[str, list[EntryInfo]], None] = lambda model, infos: None,
) -> Reconciled:
    """Compare everything. sqlite3.Error if the catalog fails.

    stopped: asked now and then; True ends it early
    adopted: told the model and what is in service from now on
    """
    result = Reconciled()
    folders = {folder.name for folder in _folders(root.path, 16)} | {
        model_folder(model) for model in catalog.models()
    }
    for folder in sorted(folders):
        salts = _folders(root.path / folder)
        shards = _SHARDS | {shard.name for salt in salts for shard in _folders(salt, 2)}
        for shard in sorted(shards):
            if stopped():
                return result
            _reconcile_shard(root, catalog, _look(root, catalog, folder, salts, shard), result, adopted)
    return result


def _look(root: Root, catalog: Catalog, folder: str, salts: list[Path], shard: str) -> _Shard:
    found = _Shard()
    # rows first: what is written between the two looks is a file without a row, and is looked at closely
    for model in catalog.models():
        if model_folder(model) == folder:
            for salt, id in catalog.ids(model, shard):
                path = root.path / folder / _folder_of(salt) / id[:2] / (id + SUFFIX)
                found.rows[path] = (model, id)
    for salt_path in salts:
        found.files.update(_files(salt_path / shard))
    return found


def _reconcile_shard(
    root: Root,
    catalog: Catalog,
    shard: _Shard,
    result: Reconciled,
    adopted: Callable[[str, list[EntryInfo]], None],
) -> None:
    fresh: dict[str, list[tuple[Path, Row]]] = {}
    for path in shard.files - shard.rows.keys():
        found = _described(root, path, result)
        if found is not None:
            try:
                catalog.register(found[0].model, found[0].layout.to_json())
            except StoreError:
                result.foreign += 1
            else:
                fresh.setdefault(found[0].model, []).append((path, found[1]))
    for model, rows in fresh.items():
        with catalog.transaction():
            there = [row for path, row in rows if path.exists()]
            catalog.upsert(model, there)
        result.adopted += len(there)
        adopted(model, [row.info for row in there])
    stale = shard.rows.keys() - shard.files
    if stale:
        with catalog.transaction():
            for path in stale:
                if not path.exists():
                    model, id = shard.rows[path]
                    catalog.delete_ids(model, [id])
                    result.dropped += 1


def entry_files(root: Root, only: str | None = None) -> Iterator[Path]:
    """Every entry file under the root, of every model and salt, or of one model."""
    for model in _folders(root.path, 16) if only is None else [root.path / model_folder(only)]:
        for salt in _folders(model):
            for shard in _folders(salt, 2):
                yield from _files(shard)


def _files(shard: Path) -> Iterator[Path]:
    with suppress(OSError), os.scandir(shard) as found:
        for entry in found:
            if entry.name.endswith(SUFFIX) and entry.is_file(follow_symlinks=False):
                yield shard / entry.name


def _described(root: Root, path: Path, result: Reconciled) -> tuple[Head, Row] | None:
    """What the file at `path` says of itself; None, and counted, if it cannot be served."""
    try:
        head, info = read_info(path)
        names = (model_folder(head.model), salt_folder(info.salt), info.id[:2], info.id + SUFFIX)
        if names != path.parts[-4:]:
            raise EntryCorrupt(f"{path.name} does not lie where it belongs")
        modified = path.stat().st_mtime
    except EntryCorrupt:
        result.corrupt += 1
        with suppress(OSError):
            root.discard(path)
    except (UnknownFormat, OSError):
        result.foreign += 1
    else:
        return head, Row(info, head.file_bytes, modified, modified, 0)
    return None


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
