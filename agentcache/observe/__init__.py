"""What can be seen of a running engine: requests, what broke their prefixes, names of what they reused, drift.

Nothing here imports vLLM: `agentcache.plugin` feeds it.
"""
