"""Identity of content: fixed, versioned hashes that do not depend on process, machine, path or settings.

Changing anything here orphans every entry in every store: raise the version in the domain instead.
"""

from __future__ import annotations

from blake3 import blake3

_BLOCK_DOMAIN = b"agentcache block v1\0"
_FILE_DOMAIN = b"agentcache file v1\0"


def block_id(data: bytes | memoryview) -> str:
    """Identity of a block's bytes: 64 hex digits."""
    return blake3(_BLOCK_DOMAIN).update(data).hexdigest()


def content_id(data: bytes | memoryview) -> str:
    """Identity of a whole file's bytes: 64 hex digits."""
    return blake3(_FILE_DOMAIN).update(data).hexdigest()
