"""Ignore files of one name (`.gitignore`, `.agentcacheignore`), nested: the deepest one that decides wins."""

from __future__ import annotations

import re
import warnings

from pathspec import GitIgnoreSpec

AGENTCACHE_IGNORE = ".agentcacheignore"
GIT_IGNORE = ".gitignore"


class IgnoreRules:
    """Rules by folder; folders and paths are posix, below the root, "" is the root itself."""

    def __init__(self) -> None:
        self._specs: dict[str, GitIgnoreSpec] = {}

    def add(self, folder: str, text: bytes) -> None:
        """Take the text of the ignore file in `folder`. A pattern that is no pattern is passed over."""
        lines = text.decode("utf-8-sig", "replace").splitlines()
        # Python says so of patterns such as `[[a]`, which mean here what they mean to git.
        warnings.filterwarnings("ignore", category=FutureWarning, message="Possible (nested )?set")
        try:
            spec = GitIgnoreSpec.from_lines(lines)
        except (ValueError, re.error):
            spec = GitIgnoreSpec.from_lines(line for line in lines if _is_pattern(line))
        self._specs[folder] = spec

    def __bool__(self) -> bool:
        return bool(self._specs)

    def ignores(self, path: str, *, is_dir: bool = False) -> bool:
        """Whether the rules leave `path` out. Parents that are left out must be asked about by themselves."""
        decided = False
        folder = path
        while folder:
            folder = folder.rpartition("/")[0]
            spec = self._specs.get(folder)
            if spec is None:
                continue
            below = path[len(folder) + 1 :] if folder else path
            include = spec.check_file(f"{below}/" if is_dir else below).include
            if include is not None:
                decided = include
                break
        return decided


def _is_pattern(line: str) -> bool:
    try:
        GitIgnoreSpec.from_lines([line])
    except (ValueError, re.error):
        return False
    return True
