"""Compile a function with numba, with types that mypy can follow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from blake3 import blake3
from numba import njit

F = TypeVar("F", bound=Callable[..., Any])

_SOURCES: Final = blake3(b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))))


def compiled(function: F) -> F:
    """`function` as machine code, compiled at its first call, kept on disk, run without the GIL."""
    return cast(F, _cached(function) or njit(nogil=True)(function))


def _cached(function: Callable[..., Any]) -> Any:
    """Compiled with a cache on disk, or None where that is impossible.

    numba takes a cached function for stale when its own file changed, but not when a function of another file
    that was compiled into it did. Here its own file and all of this package count.
    """
    try:
        dispatcher = njit(cache=True, nogil=True)(function)
    except RuntimeError:  # no folder to write to
        return None
    if not hasattr(dispatcher, "_cache"):  # compilation is switched off
        return dispatcher
    cache_file: Any = getattr(dispatcher._cache, "_cache_file", None)
    if not hasattr(cache_file, "_source_stamp"):
        return None
    stamp = _SOURCES.copy()
    stamp.update(Path(function.__code__.co_filename).read_bytes())
    cache_file._source_stamp = stamp.hexdigest()
    return dispatcher
