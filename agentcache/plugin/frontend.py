"""What the API server's process knows: the latest requests, names, samples to repeat. Fed by vLLM's statistics."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from agentcache.observe.engine_log import write_request
from agentcache.observe.log import RequestLog
from agentcache.observe.names import Names

if TYPE_CHECKING:
    from agentcache.plugin.metrics import Metrics
    from agentcache.plugin.tracing import Tracing

LOG = RequestLog()
NAMES = Names()
SAMPLES: deque[dict[str, Any]] = deque(maxlen=4)
"""Prompts to be repeated, as token ids; the latest push out the oldest."""
METRICS: Metrics | None = None
TRACING: Tracing | None = None
"""None unless the server was given somewhere to send traces."""


def receive(news: dict[str, Any]) -> None:
    """News of an engine's scheduler half (`Account.take`)."""
    for record in news["requests"]:
        LOG.add(record)
        write_request(record)
        if TRACING is not None:
            TRACING.record(record)
    SAMPLES.extend(news["samples"])
