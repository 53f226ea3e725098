"""Computing entries before an agent asks for them."""

from agentcache.warm.worker import WarmItem, WarmWorker, items_of_index

__all__ = ["WarmItem", "WarmWorker", "items_of_index"]
