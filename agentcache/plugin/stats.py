"""Our statistics on vLLM's own way from the scheduler to the API server: no polling, no connection of our own.

Account.take ─▶ RequestStats ─▶ vLLM's scheduler stats ─▶ Metrics (Prometheus), RequestLog, vLLM's log line
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats

_SUMMED = ("prompt_tokens", "prefix_hit_tokens", "reused_tokens", "recomputed_tokens", "computed_tokens")


@dataclass
class RequestStats(KVConnectorStats):
    """data: as `Account.take` has it; on the other side, sums for vLLM's log line (`totals`)."""

    @classmethod
    def totals(cls, data: dict[str, Any]) -> RequestStats:
        """Sums over what came in one step: all that the log line needs, so that no record is kept for it."""
        sums: Counter[str] = Counter(requests=len(data["requests"]))
        for record in data["requests"]:
            sums.update({name: record[name] for name in _SUMMED})
        return cls(dict(sums) if data["requests"] else {})

    def reset(self) -> None:
        self.data: dict[str, Any] = {}

    def aggregate(self, other: KVConnectorStats) -> RequestStats:
        return RequestStats(dict(Counter(self.data) + Counter(other.data)))

    def reduce(self) -> dict[str, int | float]:
        return dict(self.data)

    def is_empty(self) -> bool:
        return not self.data
