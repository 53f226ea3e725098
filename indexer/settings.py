"""What a user may set about an index."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from agentcache.errors import UsageError

MAX_FILE_BYTES = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class IndexSettings:
    """`max_file_bytes`: larger files are left out. `workers`: parser processes; 0: one a CPU, at most 8."""

    max_file_bytes: int = MAX_FILE_BYTES
    workers: int = 0

    @classmethod
    def from_environment(cls, max_file_bytes: int = MAX_FILE_BYTES) -> IndexSettings:
        """From `AGENTCACHE_MAX_FILE_BYTES` (else as given) and `AGENTCACHE_INDEX_WORKERS`.

        UsageError if one is no number.
        """
        return cls(
            _number("AGENTCACHE_MAX_FILE_BYTES", max_file_bytes), _number("AGENTCACHE_INDEX_WORKERS", 0)
        )

    @property
    def num_workers(self) -> int:
        return self.workers or min(8, _usable_cpus())


def _usable_cpus() -> int:
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _number(variable: str, default: int) -> int:
    text = os.environ.get(variable, "")
    if not text:
        return default
    if not text.isdigit():
        raise UsageError(f"{variable} must be a whole number, not {text!r}: correct it or unset it")
    return int(text)
