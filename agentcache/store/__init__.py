"""Entries in RAM, on disk and far away: content-addressed files, a catalog that can be rebuilt, budgets that hold."""

from __future__ import annotations

from agentcache.store.errors import EntryCorrupt, EntryMissing
from agentcache.store.layout import EntryLayout
from agentcache.store.policy import Candidate, EvictionPolicy, ExpectedValue, LeastRecentlyUsed
from agentcache.store.stats import StoreStats, TierStats
from agentcache.store.store import EntryStore

__all__ = [
    "Candidate",
    "EntryCorrupt",
    "EntryLayout",
    "EntryMissing",
    "EntryStore",
    "EvictionPolicy",
    "ExpectedValue",
    "LeastRecentlyUsed",
    "StoreStats",
    "TierStats",
]
