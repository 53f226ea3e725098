"""Computing entries before an agent asks for them.

Sources (`job`) say what is useful: an index with its edits (`index_source`), what is learned from traffic
(`agentcache.learn`). The service (`service`) has an engine compute it: in small steps (`steps`), when agents do not
need the engine (`pace`), within a budget (`budget`). `warmer` puts it together for repositories.
"""

from agentcache.warm.job import Job, Source, Urgency
from agentcache.warm.order import items_of_index
from agentcache.warm.queue import WarmItem

__all__ = ["Job", "Source", "Urgency", "WarmItem", "items_of_index"]
