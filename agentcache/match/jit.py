"""Compile a function with numba, with types that mypy can follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """`function` as machine code, compiled at its first call, kept on disk, run without the GIL."""
    return cast(F, njit(cache=True, nogil=True)(function))
