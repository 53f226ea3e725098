"""Text to token streams: what a file or a block looks like to the model."""

from agentcache.context.streams import Stream, Streams

__all__ = ["Stream", "Streams"]
