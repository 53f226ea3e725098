"""What of a prompt is reused, and what is computed again."""

from agentcache.plan.clip import clip
from agentcache.plan.planner import make_plan, plan_prompt, reused_positions, top_up
from agentcache.plan.runs import Runs, runs, split, take
from agentcache.plan.strategies import STRATEGIES, RecomputePolicy, Strategy
from agentcache.plan.types import Plan, Positions, Span

__all__ = [
    "STRATEGIES",
    "Plan",
    "Positions",
    "RecomputePolicy",
    "Runs",
    "Span",
    "Strategy",
    "clip",
    "make_plan",
    "plan_prompt",
    "reused_positions",
    "runs",
    "split",
    "take",
    "top_up",
]
