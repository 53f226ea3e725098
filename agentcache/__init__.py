"""agentcache: order-independent KV cache reuse for coding agents, inside an unmodified vLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentcache.context import Context

__all__ = ["Context", "__version__"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is: the command line answers `--help` without a tokenizer."""
    if name != "Context":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from agentcache.context import Context

    return Context
