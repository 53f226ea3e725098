"""How close a blended prompt's predictions are to a full prefill's."""

from agentcache.quality.top import top_kl, top_logprobs

__all__ = ["top_kl", "top_logprobs"]
