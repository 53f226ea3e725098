"""The text files of a repository, as git or the indexer's ignore rules know them."""

from __future__ import annotations

from pathlib import Path

from agentcache.errors import IndexError_, UsageError
from agentcache.indexer import Index


def read_sources(root: Path, suffix: str = ".py") -> dict[str, str]:
    """Path below `root` to text, of every indexed file that ends so. UsageError if there is none."""
    if not root.is_dir():
        raise UsageError(f"the repository {root} does not exist")
    found: dict[str, str] = {}
    with Index.open(root) as index:
        index.update(changes=False)
        for record in index.files():
            if record.path.endswith(suffix):
                try:
                    found[record.path] = index.read(record.path).decode()
                except (IndexError_, UnicodeDecodeError):
                    continue
    if not found:
        raise UsageError(f"there is no {suffix} file in {root}")
    return found
