"""The indexed roots that references may lead into, and nothing else."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from agentcache.context.reference import Reference, readings, shown
from agentcache.errors import IndexError_, ReferenceError_, UsageError
from agentcache.indexer import Block, Index

_PATIENCE_S = 1.0
_PAUSE_S = 0.05
_RANK_FOR_S = 30.0
_MAX_NAMED = 5
"""Candidates that an error names."""


@dataclass(slots=True)
class Root:
    """One indexed folder. name: what references call it; unique among the roots."""

    name: str
    index: Index
    _ranks: dict[str, float] | None = None
    _ranked_at: float = 0.0

    def importance(self) -> dict[str, float]:
        """How many average files of this root each of its files weighs. At most half a minute old."""
        now = time.monotonic()
        if self._ranks is None or now - self._ranked_at > _RANK_FOR_S:
            ranks = self.index.importance()
            self._ranks = {path: rank * len(ranks) for path, rank in ranks.items()}
            self._ranked_at = now
        return self._ranks


class Located(NamedTuple):
    """An indexed file, and the reading of the reference that led to it."""

    root: Root
    reference: Reference


class Roots:
    """Opened indexes. Any thread may use it.

    paths: folders; the same one twice counts once
    refresh: whether a file that changed since it was indexed is indexed again on the spot; else it is somebody
    else's task (a watcher's), which is waited for a moment. Readers that must not write say False.
    Raises IndexError_ if a folder cannot be opened, UsageError if there is none.
    """

    def __init__(self, paths: Iterable[str | Path], *, refresh: bool = True) -> None:
        folders = list(dict.fromkeys(Path(path).expanduser().resolve() for path in paths))
        if not folders:
            raise UsageError("no repository is indexed here: give at least one folder")
        self._refresh = refresh
        self._roots: list[Root] = []
        try:
            for name, folder in zip(_names(folders), folders, strict=True):
                self._roots.append(Root(name, Index.open(folder)))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Root]:
        return iter(self._roots)

    def __len__(self) -> int:
        return len(self._roots)

    def close(self) -> None:
        for root in self._roots:
            root.index.close()

    def label(self, root: Root, path: str) -> str:
        """How a reference names this file: with the root's name where there are several roots."""
        return f"{root.name}:{path}" if len(self._roots) > 1 else path

    def locate(self, text: str) -> Located:
        """The indexed file that a reference names. Raises ReferenceError_ if there is none, or several."""
        wanted = readings(text, [root.name for root in self._roots])
        found = list(self._indexed(wanted)) or list(self._indexed(self._without_links(wanted)))
        if not found and self._refresh and self._look_again(wanted):
            found = list(self._indexed(wanted))
        if not found:
            raise ReferenceError_(self._unknown(text, wanted))
        if len(found) > 1:
            # Told apart by the root where that does it, else by how the text was read.
            named = [str(Reference(hit.reference.path, hit.root.name)) for hit in found]
            raise ReferenceError_(f"{shown(text)} is ambiguous: {listed(named)}; say which, as root:path")
        return found[0]

    def snapshot(self, root: Root, path: str) -> tuple[bytes, list[Block]]:
        """The bytes of an indexed file as they are now, and the blocks that tile them. Raises ReferenceError_."""
        _check_inside(root, path)
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return root.index.snapshot(path)
            except IndexError_:
                if time.monotonic() > deadline:
                    break
            if self._refresh:
                root.index.refresh([path])
                if root.index.file(path) is None:
                    break
            time.sleep(_PAUSE_S)
        label = self.label(root, path)
        if not os.path.lexists(root.index.root / path):
            raise ReferenceError_(f"{shown(label)} is gone")
        raise ReferenceError_(
            f"{shown(label)} has changed since it was indexed: run `agentcache index` and try again"
        )

    def freshen(self) -> None:
        """Look at every file, unless somebody else is doing so."""
        for root in self._roots:
            root.index.freshen()

    def _indexed(self, wanted: list[Reference]) -> Iterator[Located]:
        for reference in wanted:
            for root in self._roots:
                if reference.root in ("", root.name) and root.index.file(reference.path) is not None:
                    yield Located(root, reference)

    def _without_links(self, wanted: list[Reference]) -> list[Reference]:
        """The readings that lead through a link to a file of the same root, by that file's own path."""
        found = []
        for reference in wanted:
            for root in self._roots:
                full = str(root.index.root / reference.path)
                real = Path(os.path.realpath(full))
                if (
                    reference.root in ("", root.name)
                    and str(real) != full
                    and real.is_relative_to(root.index.root)
                ):
                    path = real.relative_to(root.index.root).as_posix()
                    found.append(replace(reference, path=path, root=root.name))
        return list(dict.fromkeys(found))

    def _look_again(self, wanted: list[Reference]) -> bool:
        """Index files that are there and were not known; whether there was one."""
        looked = False
        for reference in wanted:
            for root in self._roots:
                inside = reference.root in ("", root.name) and _is_inside(root, reference.path)
                if inside and os.path.isfile(root.index.root / reference.path):
                    root.index.refresh([reference.path])
                    looked = True
        return looked

    def _unknown(self, text: str, wanted: list[Reference]) -> str:
        for reference in wanted:
            for root in self._roots:
                if reference.root in ("", root.name) and _leads_out(root, reference.path):
                    return f"{shown(text)} leads out of the indexed roots through a link"
        names = ", ".join(root.name for root in self._roots)
        last = {reference.path.rpartition("/")[2] for reference in wanted}
        alike = [
            self.label(root, file.path)
            for root in self._roots
            for file in root.index.files()
            if file.path.rpartition("/")[2] in last
        ]
        hint = f"; did you mean {listed(alike)}?" if alike else ""
        return f"{shown(text)} names no file that is indexed in {names}{hint}"


def listed(names: list[str]) -> str:
    """Candidates for an error: the first few, and how many more there are."""
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(shown(name) for name in names[:_MAX_NAMED]) + more


def _names(folders: list[Path]) -> list[str]:
    """The last part of each folder; where two are equal, as many parts as it takes."""
    length = 1
    names = [folder.name or "root" for folder in folders]
    while max(Counter(names).values()) > 1:
        length += 1
        counts = Counter(names)
        names = [
            "/".join(folder.parts[-length:]).lstrip("/") if counts[name] > 1 else name
            for name, folder in zip(names, folders, strict=True)
        ]
    return names


def _is_inside(root: Root, path: str) -> bool:
    """Whether no link stands between the root and `path`."""
    full = str(root.index.root / path)
    return os.path.realpath(full) == full


def _leads_out(root: Root, path: str) -> bool:
    full = root.index.root / path
    return os.path.lexists(full) and not Path(os.path.realpath(full)).is_relative_to(root.index.root)


def _check_inside(root: Root, path: str) -> None:
    """A folder may have become a link since it was indexed."""
    if not _is_inside(root, path):
        raise ReferenceError_(f"{shown(path)} leads out of {root.name} through a link")
