"""Which runs of a prompt's tokens equal runs of stored tokens."""

from agentcache.match.matcher import Matcher, warm_up
from agentcache.match.rules import MIN_SPAN

__all__ = ["MIN_SPAN", "Matcher", "warm_up"]
