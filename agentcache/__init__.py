"""agentcache: order-independent KV cache reuse for coding agents, inside an unmodified vLLM."""

__version__ = "0.1.0"
