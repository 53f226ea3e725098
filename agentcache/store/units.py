"""Sizes and ages, as people write and read them."""

from __future__ import annotations

import re

from agentcache.errors import UsageError

_SIZES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_SIZES |= {f"{prefix}i": 1 << (10 * power) for power, prefix in enumerate("kmgt", start=1)}
_AGES = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def human_bytes(size: int) -> str:
    """`size` in decimal units: 999 B, 1.5 kB, 20 MB."""
    value, units = float(size), iter(("kB", "MB", "GB", "TB", "PB"))
    if value < 1000:
        return f"{size} B"
    unit = ""
    while value >= 999.5:
        value, unit = value / 1000, next(units)
    return f"{value:.{1 if value < 9.95 else 0}f} {unit}"


def parse_bytes(text: str) -> int:
    """Bytes of "2GB", "512 MiB", "1.5g" or "1000". UsageError if it is none of these."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", text.lower())
    if match is None or match[2] not in _SIZES:
        raise UsageError(f"{text!r} is not a size: write for example 2GB, 512MiB or 1000000")
    return int(float(match[1]) * _SIZES[match[2]])


def parse_age(text: str) -> float:
    """Seconds of "30d", "12h", "2w". UsageError if it is none of these."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhdw])\s*", text.lower())
    if match is None:
        raise UsageError(f"{text!r} is not an age: write for example 30d, 12h or 2w")
    return float(match[1]) * _AGES[match[2]]


def human_age(seconds: float) -> str:
    """The largest unit that fits at least once: 45 s, 3 h, 12 d."""
    for unit, length in reversed(_AGES.items()):
        if unit != "w" and seconds >= length:
            return f"{int(seconds / length)} {unit}"
    return "0 s"
