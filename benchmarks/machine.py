"""What figures hold for."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any


def machine() -> dict[str, Any]:
    """Processor, its cores, memory, and the system."""
    return {
        "cpu": _first("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(int((_first("/proc/meminfo", "MemTotal") or "0").split()[0]) / 2**20) or None,
        "system": platform.system(),
    }


def _first(file: str, name: str) -> str:
    """Value of the first line of that name, "" where there is none."""
    lines = Path(file).read_text().splitlines() if Path(file).exists() else []
    values = (line.split(":", 1)[1].strip() for line in lines if line.startswith(name))
    return next(values, "")
