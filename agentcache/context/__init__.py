"""Source text for prompts: by reference (`Context`), and as the token streams that are precomputed (`Streams`)."""

from agentcache.context.assemble import Assembled, Context, Item
from agentcache.context.streams import Stream, Streams

__all__ = ["Assembled", "Context", "Item", "Stream", "Streams"]
