"""Where a model comes from, and which entries belong to it."""

from __future__ import annotations

from agentcache.models.fetch import Progress
from agentcache.models.fingerprint import fingerprint
from agentcache.models.pull import is_pulled, model_folder, pull
from agentcache.models.registry import KNOWN, KnownModel, known
from agentcache.models.resolve import resolve

__all__ = [
    "KNOWN",
    "KnownModel",
    "Progress",
    "fingerprint",
    "is_pulled",
    "known",
    "model_folder",
    "pull",
    "resolve",
]
