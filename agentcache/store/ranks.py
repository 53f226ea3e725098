"""Where the stores of tensor-parallel ranks lie: the first rank's is the root itself, the others' are folders in it."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit

_FOLDER = "rank-"


def rank_root(root: Path, rank: int) -> Path:
    return root if rank == 0 else root / f"{_FOLDER}{rank}"


def rank_roots(root: Path) -> list[Path]:
    """The root and those of all further ranks that ever had one in it."""
    return [root, *sorted(path for path in root.glob(f"{_FOLDER}*") if path.is_dir())]


def rank_url(url: str, rank: int) -> str:
    """A remote tier's URL (`buckets.py`) for one rank; "" stays ""."""
    if not url or rank == 0:
        return url
    parts = urlsplit(url)
    if parts.scheme == "s3":
        return parts._replace(path=f"{parts.path.rstrip('/')}/{_FOLDER}{rank}").geturl()
    options = dict(parse_qsl(parts.query))
    options["prefix"] = f"{options.get('prefix', 'agentcache')}:{_FOLDER}{rank}"
    return parts._replace(query=urlencode(options)).geturl()
