"""What figures hold for."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any


def machine() -> dict[str, Any]:
    """Processor, its cores, and the system."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor(),
        "cores": len(names),
        "system": platform.system(),
    }
