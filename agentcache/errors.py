"""Errors a user can cause. The command line prints `str(error)` as one line and exits with 1.

AgentCacheError
├── UsageError          wrong arguments, unknown names, nothing to do
│   └── ReferenceError_ a reference to code that names nothing, several things, or something out of reach
├── IndexError_         the index cannot be opened, read or written
├── ModelError          a model cannot be found, fetched, verified or converted
├── StoreError          the entry store cannot be opened or written
└── EngineError         vLLM is missing, does not start, or answers with an error

Each message says what happened and what to do next, without a line break.
"""

from __future__ import annotations


class AgentCacheError(Exception):
    """Base of every error that is shown to a user as one line."""


class UsageError(AgentCacheError):
    """Wrong arguments, unknown names, or nothing to do."""


class ReferenceError_(UsageError):
    """A reference (`path`, `path#Name`, `path:10-80`) that names nothing, several things, or something out of reach."""


class IndexError_(AgentCacheError):
    """The index cannot be opened, read or written."""


class ModelError(AgentCacheError):
    """A model cannot be found, fetched, verified or converted."""


class StoreError(AgentCacheError):
    """The entry store cannot be opened or written."""


class EngineError(AgentCacheError):
    """vLLM is missing, does not start, or answers with an error."""
