"""Where agentcache keeps its files: one folder, all of it a cache that can be deleted at any time.

`$AGENTCACHE_HOME`, else the user's cache directory (`~/.cache/agentcache` on Linux):

    corrections/  what reused K/V lack on average, one file a model and rank
    index/        one SQLite database a repository
    models/       converted model folders
    store/        entries (KV files and their catalog)
"""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def home() -> Path:
    """The folder that holds everything agentcache writes. Not created here."""
    configured = os.environ.get("AGENTCACHE_HOME")
    if configured:
        return Path(configured).expanduser().absolute()
    return Path(platformdirs.user_cache_dir("agentcache"))


def corrections_dir() -> Path:
    return home() / "corrections"


def index_dir() -> Path:
    return home() / "index"


def models_dir() -> Path:
    return home() / "models"


def store_dir() -> Path:
    return home() / "store"


def ensure_private(folder: Path) -> Path:
    """Create `folder` (and its parents) readable by the user alone, and return it."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder
