"""The matcher the engine uses. So far the reference; the fast one keeps this interface."""

from __future__ import annotations

from agentcache.match.reference import ReferenceMatcher


def warm_up() -> None:
    """Compile everything a match needs, so that no request waits for it."""


class Matcher(ReferenceMatcher):
    """Spans of stored tokens in prompts, for one model."""

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(info.tokens.nbytes for info in self._entries.values())
