"""How far warming is: what the status, the live view and the metrics show."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Edit:
    """An edit that is warm again.

    tokens: computed by the engine for it; file_tokens: of the whole file
    seconds: from the save until it was warm; at: when that was, seconds since the epoch
    """

    path: str
    blocks: int
    tokens: int
    file_tokens: int
    seconds: float
    at: float


@dataclass(slots=True)
class Progress:
    """How warm the indexes are.

    blocks: different blocks in them; warm_blocks: those with an entry, in their file's context or alone
    queued_blocks: what is still to be looked at, a block once a context; queue: jobs, by class of urgency
    tokens_computed: by the engine for us, since the worker was made; tokens_per_s: while it computes
    used_bytes, budget_bytes: of entries that are kept, and may be; refused: jobs that did not fit
    state: warming, waiting (for agents), idle, full, stopped, or off
    """

    blocks: int = 0
    warm_blocks: int = 0
    queued_blocks: int = 0
    tokens_computed: int = 0
    state: str = "off"
    queue: dict[str, int] = field(default_factory=dict)
    used_bytes: int = 0
    budget_bytes: int = 0
    refused: int = 0
    tokens_per_s: float = 0.0
    last_edit: Edit | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
