"""What travels between the two halves of the connector, once a step in each direction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, NamedTuple

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorWorkerMetadata

from agentcache.entry import EntryInfo, Tokens
from agentcache.learn.note import Note
from agentcache.observe.prompts import Parting
from agentcache.plan.types import Plan


@dataclass(frozen=True, slots=True)
class LoadOp:
    """Fill the pages of one request for the positions [plan.start, plan.stop), before the step's forward.

    tokens: prompt token ids, int32 [>= plan.stop]; pages: the request's page ids from position 0 on
    strategy, budget: how the worker chooses further positions by scores, see `agentcache.plan`
    """

    request_id: str
    tokens: Tokens
    pages: tuple[int, ...]
    plan: Plan
    strategy: str = "boundary"
    budget: float = 0.0


@dataclass(frozen=True, slots=True)
class StoreOp:
    """After the step's forward, keep the K/V of `info.tokens`, which lie at `info.position` of the request."""

    request_id: str
    pages: tuple[int, ...]
    info: EntryInfo


class SpanRecord(NamedTuple):
    """Prompt positions [start, stop) came from an entry; `recomputed` of them were computed again."""

    start: int
    stop: int
    entry: str
    recomputed: int


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One finished request in tokens; prefix_hit + reused + recomputed + computed == prompt.

    prefix_hit: found in vLLM's own prefix cache
    reused: taken from entries and left as they are
    recomputed: taken from entries, then computed again in the prompt's context (boundary tokens)
    computed: computed from nothing, by virtual requests or by vLLM itself
    fallback: why a `fast` request was not blended; "" if it was, or if it did not ask
    load_s, recompute_s: seconds spent loading entries into pages, and in virtual requests
    finished_at: seconds since the epoch
    entries: ids of the entries it reused, in prompt order
    arrived_at: seconds since the epoch, as the API server saw it; queue_s: from then until it was admitted
    ttft_s: from then until its first token left the engine, None if it was aborted before; output_tokens: generated
    placed: the spans by place, the first `agentcache.plugin.account.MAX_SPANS`; the worker half gets none
    parting: where it stopped being what an earlier prompt was, None if it did not; the worker half is not told
    match_s: spent on finding entries and on the plan, at its admission
    trace_headers: of the client, where traces are sent somewhere; None otherwise
    """

    request_id: str
    mode: str
    prompt_tokens: int
    prefix_hit_tokens: int
    reused_tokens: int
    recomputed_tokens: int
    computed_tokens: int
    spans: int
    fallback: str
    load_s: float
    recompute_s: float
    finished_at: float
    entries: tuple[str, ...] = ()
    arrived_at: float = 0.0
    queue_s: float = 0.0
    ttft_s: float | None = None
    output_tokens: int = 0
    placed: tuple[SpanRecord, ...] = ()
    parting: Parting | None = None
    match_s: float = 0.0
    trace_headers: Mapping[str, str] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON has it; `entries` are in `placed`."""
        parting = asdict(self.parting) if self.parting is not None else None
        return {
            **self.summary(),
            "placed": [list(span) for span in self.placed],
            "parting": parting,
            "trace_headers": dict(self.trace_headers) if self.trace_headers else None,
        }

    def summary(self) -> dict[str, Any]:
        """What it cost and took, without what it said and reused."""
        hidden = ("entries", "placed", "parting", "trace_headers")
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name not in hidden}

    def with_load(self, blended: Blended) -> RequestRecord:
        """The record of a plan, corrected by what its execution took."""
        reused = self.reused_tokens - min(self.reused_tokens, blended.holes)
        topped_up = min(reused, blended.topped_up)
        recomputed = self.recomputed_tokens + topped_up
        return replace(
            self,
            reused_tokens=reused - topped_up,
            recomputed_tokens=recomputed,
            computed_tokens=self.prompt_tokens - self.prefix_hit_tokens - (reused - topped_up) - recomputed,
            load_s=blended.load_s,
            recompute_s=blended.recompute_s,
        )


@dataclass(frozen=True, slots=True)
class Blended:
    """What one load took.

    holes: reused tokens that were computed instead, because their entry was lost
    topped_up: reused tokens that were recomputed because of their scores
    """

    holes: int
    topped_up: int
    load_s: float
    recompute_s: float


@dataclass(slots=True)
class StepMetadata(KVConnectorMetadata):
    """Scheduler half to worker half. Loads are executed in order: a later one may stand on an earlier one's pages."""

    loads: list[LoadOp] = field(default_factory=list)
    stores: list[StoreOp] = field(default_factory=list)
    finished: list[RequestRecord] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    reasons: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class WorkerReport(KVConnectorWorkerMetadata):
    """Worker half to scheduler half.

    stored: entries that can be read from now on; lost: entries that could not be read, to be forgotten
    blended: request id to what its load took
    reasons: reason to how often it occurred; broken: the breaker's reason, "" while blending works
    """

    stored: list[EntryInfo] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    blended: dict[str, Blended] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    broken: str = ""

    def count(self, reason: str) -> None:
        """`reason` has occurred once more."""
        self.reasons[reason] = self.reasons.get(reason, 0) + 1

    def aggregate(self, other: KVConnectorWorkerMetadata) -> WorkerReport:
        """Merge two ranks' reports: stored is what every rank has, lost is what any rank lacks."""
        assert isinstance(other, WorkerReport)
        theirs = {info.id for info in other.stored}
        blended = dict(self.blended)
        for request_id, their in other.blended.items():
            ours = blended.get(request_id, their)
            blended[request_id] = Blended(
                max(ours.holes, their.holes),
                max(ours.topped_up, their.topped_up),
                max(ours.load_s, their.load_s),
                max(ours.recompute_s, their.recompute_s),
            )
        reasons = dict(self.reasons)
        for reason, count in other.reasons.items():
            reasons[reason] = max(count, reasons.get(reason, 0))
        return WorkerReport(
            stored=[info for info in self.stored if info.id in theirs],
            lost=sorted({*self.lost, *other.lost}),
            blended=blended,
            reasons=reasons,
            broken=self.broken or other.broken,
        )

    def __bool__(self) -> bool:
        return bool(self.stored or self.lost or self.blended or self.reasons or self.broken)
