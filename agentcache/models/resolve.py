"""What a user may call a model: a registered name, a local folder, or a hub id."""

from __future__ import annotations

import os
import re
from pathlib import Path

from agentcache.errors import ModelError
from agentcache.models.fetch import Progress
from agentcache.models.pull import pull
from agentcache.models.registry import KNOWN

_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?")


def resolve(name: str, progress: Progress | None = None) -> str:
    """What to give vLLM as the model.

    A registered name becomes its local folder, pulled if need be; a local folder its absolute path; anything
    else that can be a hub id stays as it is. ModelError for a path that does not lead to a model.
    """
    if name in KNOWN:
        return str(pull(name, progress))
    path = Path(name).expanduser()
    if name and path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(f"{name} holds no model: there is no config.json in it")
        return str(path.absolute())
    if name and path.exists():
        raise ModelError(f"{name} is a file: give the folder that holds the model's config.json")
    if _HUB_ID.fullmatch(name) is None or name.endswith((".gguf", ".safetensors")):
        known = ", ".join(sorted(KNOWN))
        if os.sep in name or name.startswith(("~", ".")):
            raise ModelError(f"the model folder {name} does not exist; a registered name works too: {known}")
        raise ModelError(
            f"{name!r} is no model: give a registered name ({known}), a local folder or a hub id"
        )
    return name
