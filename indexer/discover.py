"""Which files below a root are to be indexed, and why the others are not. No file is opened but ignore files.

git's own answer counts where there is a git; elsewhere the same ignore files are followed here.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from agentcache.indexer import policy
from agentcache.indexer.checkout import Checkout, GitRefused, find_checkout
from agentcache.indexer.ignore import AGENTCACHE_IGNORE, GIT_IGNORE, IgnoreRules
from agentcache.indexer.settings import IndexSettings


@dataclass(slots=True)
class Listing:
    """What lies below a root. Paths are posix, below the root, surrogate-escaped.

    files: regular files to index, with their lstat
    skipped: reason of everything left out; a folder stands for all that is in it and ends with a slash
    problems: what could not be looked at, and why
    """

    files: dict[str, os.stat_result] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)


def discover(root: Path, settings: IndexSettings, checkout: Checkout | None) -> Listing:
    """List `root` (resolved). OSError if the root itself cannot be listed."""
    os.listdir(root)
    listing = Listing()
    if checkout is not None:
        try:
            if _list_checkout(root, "", checkout, listing, settings):
                return listing
        except GitRefused as refusal:
            listing = Listing()
            listing.problems[""] = f"git refused ({refusal}): ignore files followed without it"
    _walk(root, listing, settings)
    return listing


def _list_checkout(
    root: Path, prefix: str, checkout: Checkout, listing: Listing, settings: IndexSettings
) -> bool:
    """List one checkout, then the submodules checked out in it. False if it ignores the folder as a whole."""
    found = checkout.list_files()
    if found is None:
        return False
    for path in found.ignored:
        if path.rstrip("/").rpartition("/")[2] not in policy.VERSION_CONTROL:
            listing.skipped[prefix + path] = _ignored_reason(path)
    for path in found.nested:
        listing.skipped[f"{prefix}{path}/"] = policy.NESTED
    rules = _agentcache_rules(checkout.folder, [*found.tracked, *found.untracked])
    out_of = _OutOfFolder(prefix, rules, listing)
    for tracked, paths in ((True, found.tracked), (False, found.untracked)):
        for path in paths:
            if not out_of(path, tracked):
                _add(root, prefix + path, listing, settings)
    for path in found.submodules:
        below = find_checkout(checkout.folder / path)
        if below is None or below.work_tree == checkout.work_tree:
            continue
        if not out_of(f"{path}/x", True):
            _list_checkout(root, f"{prefix}{path}/", below, listing, settings)
    return True


def _ignored_reason(path: str) -> str:
    """Ignored files that would be left out anyway say the more telling reason."""
    name = path.rstrip("/").rpartition("/")[2]
    if path.endswith("/"):
        return policy.directory_reason(name) or policy.IGNORED
    return policy.SECRET if policy.name_reason(path) == policy.SECRET else policy.IGNORED


class _OutOfFolder:
    """Whether a listed path is left out for a rule or a folder it is in; notes the reason once a folder."""

    def __init__(self, prefix: str, rules: IgnoreRules, listing: Listing) -> None:
        self._prefix = prefix
        self._rules = rules
        self._listing = listing
        self._folders: dict[tuple[str, bool], str | None] = {("", True): None, ("", False): None}

    def __call__(self, path: str, tracked: bool) -> bool:
        folder = path.rpartition("/")[0]
        if self._folder_out(folder, tracked) is not None:
            return True
        if self._rules and self._rules.ignores(path):
            self._listing.skipped[self._prefix + path] = policy.AGENTCACHE_IGNORED
            return True
        return False

    def _folder_out(self, folder: str, tracked: bool) -> str | None:
        """The outermost folder at or above `folder` that is left out."""
        key = (folder, tracked)
        if key not in self._folders:
            parent, _, name = folder.rpartition("/")
            out = self._folder_out(parent, tracked)
            if out is None:
                reason = policy.directory_reason(name, tracked=tracked)
                if reason is None and self._rules and self._rules.ignores(folder, is_dir=True):
                    reason = policy.AGENTCACHE_IGNORED
                if reason is not None:
                    out = folder
                    self._listing.skipped[f"{self._prefix}{folder}/"] = reason
            self._folders[key] = out
        return self._folders[key]


def _agentcache_rules(folder: Path, paths: list[str]) -> IgnoreRules:
    rules = IgnoreRules()
    names = [path for path in paths if path.endswith(AGENTCACHE_IGNORE)]
    for path in {AGENTCACHE_IGNORE, *names}:
        if path.rpartition("/")[2] == AGENTCACHE_IGNORE:
            _load_rules(rules, folder, path)
    return rules


def _load_rules(rules: IgnoreRules, folder: Path, path: str) -> None:
    try:
        text = (folder / path).read_bytes()
    except OSError:
        return
    rules.add(path.rpartition("/")[0], text)


def _add(root: Path, path: str, listing: Listing, settings: IndexSettings) -> None:
    """Take one entry that no rule leaves out, if it is a file of a fit size and name."""
    full = f"{root}/{path}"
    try:
        info = os.lstat(full)
    except FileNotFoundError:
        return  # deleted and still in git's index
    except OSError as error:
        listing.problems[path] = _reason(error)
        return
    if stat.S_ISLNK(info.st_mode):
        listing.skipped[path] = _link_reason(root, full)
    elif stat.S_ISDIR(info.st_mode):
        return  # a file in git's index that is a folder now: its files are listed by themselves
    elif not stat.S_ISREG(info.st_mode):
        listing.skipped[path] = policy.SPECIAL
    elif (reason := policy.name_reason(path)) is not None:
        listing.skipped[path] = reason
    elif info.st_size > settings.max_file_bytes:
        listing.skipped[path] = policy.TOO_LARGE
    else:
        listing.files[path] = info


def _link_reason(root: Path, full: str) -> str:
    """Links are never followed: what they lead to is visited by its own name, or is outside."""
    try:
        target = os.path.realpath(full)
    except OSError:
        return policy.SYMLINK
    return policy.SYMLINK if target == str(root) or target.startswith(f"{root}/") else policy.OUTSIDE


def _reason(error: OSError) -> str:
    return f"cannot be read: {(error.strerror or str(error)).lower()}"


def _walk(root: Path, listing: Listing, settings: IndexSettings) -> None:
    """List a root without git, folder by folder; left-out folders are not entered."""
    ignored, agentcache_ignored = IgnoreRules(), IgnoreRules()
    folders = [""]
    while folders:
        folder = folders.pop()
        prefix = f"{folder}/" if folder else ""
        try:
            entries = sorted(os.scandir(f"{root}/{folder}"), key=lambda entry: entry.name)
        except OSError as error:
            listing.problems[prefix or "."] = _reason(error)
            continue
        for entry in entries:
            if entry.name == GIT_IGNORE:
                _load_rules(ignored, root, prefix + entry.name)
            elif entry.name == AGENTCACHE_IGNORE:
                _load_rules(agentcache_ignored, root, prefix + entry.name)
        for entry in entries:
            path = prefix + entry.name
            is_dir = entry.is_dir(follow_symlinks=False)
            if is_dir and entry.name in policy.VERSION_CONTROL:
                continue
            reason = policy.directory_reason(entry.name) if is_dir else None
            if reason is None and ignored.ignores(path, is_dir=is_dir):
                reason = _ignored_reason(f"{path}/" if is_dir else path)
            if reason is None and agentcache_ignored.ignores(path, is_dir=is_dir):
                reason = policy.AGENTCACHE_IGNORED
            if reason is None and is_dir:
                reason = _folder_reason(f"{root}/{path}")
            if reason is not None:
                listing.skipped[f"{path}/" if is_dir else path] = reason
            elif is_dir:
                folders.append(path)
            else:
                _add(root, path, listing, settings)


def _folder_reason(full: str) -> str | None:
    """What a folder holds may say what it is: a checkout, a virtual environment, a cache."""
    if os.path.lexists(f"{full}/.git"):
        return policy.NESTED
    if os.path.exists(f"{full}/pyvenv.cfg"):
        return policy.VENDORED
    if os.path.exists(f"{full}/CACHEDIR.TAG"):
        return policy.GENERATED
    return None
