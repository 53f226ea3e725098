"""The worker half: executes loads before a step's forward and stores after it. One a worker process and rank."""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from agentcache import paths
from agentcache.blend.correction import Correction
from agentcache.blend.executor import BlendExecutor, BlendResult, Job
from agentcache.blend.forward import PagedForward
from agentcache.blend.pages import PagedKV, UnsupportedPages
from agentcache.blend.ranks import agree, rank
from agentcache.blend.rope import KeyShift, UnsupportedPositions
from agentcache.blend.trial import find_shift
from agentcache.entry import as_tokens
from agentcache.errors import EngineError, ModelError
from agentcache.learn.note import Note, NoteQueue
from agentcache.plugin.messages import Blended, LoadOp, RequestRecord, StepMetadata, StoreOp, WorkerReport
from agentcache.store import EntryCorrupt, EntryMissing, EntryStore
from agentcache.store.behind import WriteBehind
from agentcache.store.buffers import buffer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from agentcache.entry import EntryInfo
    from agentcache.plan import RecomputePolicy
    from agentcache.quality.probe import Probe
    from agentcache.quality.selftest import Verdict

logger = logging.getLogger("vllm.agentcache")
_KEPT_RECORDS = 1000
_READ_AT_ONCE = 16 << 20
"""Bytes of K/V."""
_SLOW_SELFTEST_S = 60.0
"""Measuring the correction takes about three times as long as the self-test, and requests wait for it."""
_PREFETCH_SHARE = 0.75
"""Of the RAM tier's budget: what prefetching may fill, so that it does not evict what is in use."""


class WorkerHalf:
    """Everything agentcache does with tensors.

    store: None where blending is impossible from the start
    unsupported: why blending is impossible, "" if it is possible; final after `attach`
    """

    def __init__(
        self, model: str, store: EntryStore | None, num_pages: int, page_size: int, unsupported: str
    ) -> None:
        self.model = model
        self.store = store
        self.unsupported = unsupported or "the model runner is not known"
        self.records: deque[RequestRecord] = deque(maxlen=_KEPT_RECORDS)
        self.totals: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.notes = NoteQueue()
        self._num_pages = num_pages
        self._page_size = page_size
        self._paged: PagedKV | None = None
        self._executor: BlendExecutor | None = None
        self._correction: Correction | None = None
        self._verdict: Verdict | None = None
        self._parts: tuple[PagedForward, PagedKV, KeyShift] | None = None
        self._report = WorkerReport()
        self._loaded: dict[str, Blended] = {}
        self._blending: list[tuple[LoadOp, BlendResult]] = []
        self._invalid_pages: set[int] = set()
        self._evicted: deque[str] = deque()
        self._failed: deque[Exception | None] = deque()  # why entries were not stored after all
        self._entries = WriteBehind(store, self._note_failure) if store is not None else None
        self._prefetcher = ThreadPoolExecutor(1, thread_name_prefix="agentcache-prefetch")

    def attach(self, runner: Any, layer_names: list[str]) -> None:
        """Learn the engine's pages, positions and layers. Called once its KV cache exists, before any request."""
        if self._entries is None:
            return
        context = runner.vllm_config.compilation_config.static_forward_context
        layers = {name: context[name] for name in layer_names}
        try:
            self._paged = PagedKV(layers, self._num_pages, self._page_size)
            forward = PagedForward(
                runner, self._paged, runner.vllm_config.scheduler_config.max_num_batched_tokens
            )
            shift = find_shift(runner, layers, forward, self._paged)
        except (UnsupportedPositions, UnsupportedPages) as error:
            self._give_up(str(error))
            return
        except Exception as error:
            logger.exception("agentcache: this engine could not be tried; it serves without blending")
            self._give_up(f"trial failed: {type(error).__name__}: {error}")
            return
        self._parts = (forward, self._paged, shift)
        self._executor = BlendExecutor(*self._parts, self._entries.read, (EntryMissing, EntryCorrupt))
        self._use(Correction.load(self._correction_path, self._paged.entry_shape))
        self.unsupported = ""

    def probe(self) -> Probe:
        """A look at this worker's model, to be used between two steps. Raises AgentCacheError where there is none."""
        if self._parts is None:
            raise EngineError(f"this engine does not blend: {self.unsupported}")
        from agentcache.quality.probe import Probe

        return Probe(*self._parts)

    @property
    def correction(self) -> Correction | None:
        """What is added to reused K/V, once it was measured for this model: now, or by an earlier engine."""
        return self._correction

    @property
    def _correction_path(self) -> Path:
        return paths.corrections_dir() / f"{self.model}-{rank()}.safetensors"

    def _use(self, correction: Correction | None) -> None:
        self._correction = correction
        if self._executor is not None:
            self._executor.correct(correction)

    def _calibrate(self, tokenizer: str, max_tokens: int, policy: RecomputePolicy) -> None:
        """Measure the correction, once a model. Without one everything works as well, a little less closely."""
        from agentcache.context import Streams
        from agentcache.quality.calibrate import calibrate, samples

        try:
            correction = calibrate(self.probe(), samples(Streams(tokenizer, max_tokens)), policy)
        except Exception as error:
            logger.warning("agentcache: no correction of reused K/V: %s: %s", type(error).__name__, error)
            return
        self._use(correction)
        if correction is not None:
            try:
                correction.save(self._correction_path)
            except OSError as error:
                logger.warning("agentcache: the correction is measured again next time: %s", error)

    def selftest(self, tokenizer: str, max_tokens: int, policy: RecomputePolicy) -> dict[str, Any]:
        """Try blending on this engine (`agentcache.quality.selftest`), once; if it fails, blending is over.

        tokenizer: local folder or hub id; max_tokens: longest prompt; policy: what requests get
        """
        if self._verdict is None:
            from agentcache.quality.selftest import Verdict, run, sample

            if self._parts is None:
                self._verdict = Verdict.not_tried(self.unsupported)
            else:
                try:
                    files, tail = sample(tokenizer, max_tokens)
                except ModelError as error:
                    return Verdict.not_tried(str(error)).to_dict()
                dtype = str(self._parts[1].dtype).removeprefix("torch.")
                began = time.perf_counter()
                self._verdict = run(self.probe(), files, tail, policy, dtype)
                slow = time.perf_counter() - began > _SLOW_SELFTEST_S
                # Ranks compute together, or not at all: they would wait for each other for ever otherwise.
                failed, slow, unknown = agree([not self._verdict.ok, slow, self._correction is None])
                if failed:
                    self._give_up(f"self-test failed: {self._verdict.reason or 'on another rank'}")
                elif unknown and not slow:
                    self._calibrate(tokenizer, max_tokens, policy)
                if self._correction is not None:
                    self._verdict = replace(self._verdict, correction=self._correction.summary())
        return self._verdict.to_dict()

    def load(self, metadata: StepMetadata, before_forward: bool = False) -> None:
        """Execute the step's loads, in order. before_forward: the engine's forward follows, and may recompute."""
        for record in metadata.finished:
            self._account(record)
        self.reasons.update(metadata.reasons)
        for note in metadata.notes:
            self.notes.add(note)
        if metadata.loads:
            self._load(metadata.loads, before_forward)

    def _load(self, ops: list[LoadOp], before_forward: bool) -> None:
        if self._executor is None:  # claimed before the scheduler half was told
            for op in ops:
                self._refuse(op)
            self._report.broken = self.unsupported
            return
        jobs = [Job(op.plan, op.tokens, op.pages, op.strategy, op.budget) for op in ops]

        def failed(error: Exception) -> None:
            self._blending = []
            for op in ops:
                self._refuse(op)
            self._give_up(f"blending paused: {type(error).__name__}: {error}")
            logger.error(
                "agentcache: blending failed and is paused until restart; requests are prefilled",
                exc_info=error,
            )

        try:
            results = self._executor.execute_all(jobs, failed if before_forward else None)
        except Exception as error:
            failed(error)
            return
        self._blending = list(zip(ops, results, strict=True))

    def _settle(self) -> None:
        """The step's forward is over: what was blended for it is done."""
        if self._executor is not None:
            self._executor.flush()
        blending, self._blending = self._blending, []
        for op, result in blending:
            result.settle()
            self._loaded_one(op, result)

    def _loaded_one(self, op: LoadOp, result: BlendResult) -> None:
        for entry, reason in result.lost.items():
            self._report.lost.append(entry)
            name = {"EntryMissing": "entry missing", "EntryCorrupt": "entry corrupt"}[reason]
            self._report.count(name)
        if result.no_scores:
            name = f"no scores: {result.no_scores}"
            self._report.count(name)
        blended = Blended(result.holes, result.topped_up, result.load_s, result.compute_s)
        self._report.blended[op.request_id] = blended
        self._loaded[op.request_id] = blended
        while len(self._loaded) > _KEPT_RECORDS:
            del self._loaded[next(iter(self._loaded))]

    def _refuse(self, op: LoadOp) -> None:
        """The pages of `op` hold nothing valid: vLLM is told to compute them itself."""
        first = op.plan.start // self._page_size
        last = -(-op.plan.stop // self._page_size)
        self._invalid_pages.update(op.pages[first:last])
        self._report.count("blend failed")

    def save(self, metadata: StepMetadata) -> None:
        """Execute the step's stores: read the pages now, store the entries in the background."""
        self._settle()
        try:
            self._save(metadata.stores)
        except Exception as error:
            self._not_stored(error)

    def _save(self, ops: Sequence[StoreOp]) -> None:
        if self._paged is None or self._entries is None:
            return
        missing = set(self._entries.missing([op.info.id for op in ops]))
        new = [op for op in ops if op.info.id in missing]
        for some in _together(new, self._paged.token_bytes):
            for op, kv in zip(some, self._read(some, self._paged), strict=True):
                self._entries.put(op.info, kv)
        # What fails later is reported as lost, as if it had been evicted at once.
        self._report.stored += [op.info for op in ops]

    def _read(self, ops: Sequence[StoreOp], paged: PagedKV) -> list[torch.Tensor]:
        """The entries' K/V as they lie in the pages now, all in one piece of memory."""
        lengths = [op.info.num_tokens for op in ops]
        where = [paged.slots(op.pages, op.info.position + torch.arange(op.info.num_tokens)) for op in ops]
        memory = buffer(sum(lengths) * paged.token_bytes)
        return paged.read_runs(torch.cat(where), lengths, memory.view(paged.dtype))

    def _note_failure(self, info: EntryInfo, error: Exception | None) -> None:
        """An entry is not in the store after all: error, or None where there is no room, which the store has counted.

        Called in the thread that stores.
        """
        self._evicted.append(info.id)
        self._failed.append(error)

    def _not_stored(self, error: Exception) -> None:
        self._report.count("store failed")
        logger.warning("agentcache: an entry was not stored: %s: %s", type(error).__name__, error)

    def note_evicted(self, entry_ids: list[str]) -> None:
        """The store has dropped entries; may be called from any thread."""
        self._evicted.extend(entry_ids)

    def take_report(self) -> WorkerReport | None:
        """What happened since the last call; None if nothing did."""
        self._settle()
        while self._failed:
            if (error := self._failed.popleft()) is not None:
                self._not_stored(error)
        report, self._report = self._report, WorkerReport()
        while self._evicted:
            report.lost.append(self._evicted.popleft())
        stored = {info.id for info in report.stored}
        report.lost = [entry for entry in report.lost if entry not in stored or not self._has(entry)]
        self.reasons.update(report.reasons)
        return report or None

    def take_invalid_pages(self) -> set[int]:
        """Pages whose load failed since the last call."""
        invalid, self._invalid_pages = self._invalid_pages, set()
        return invalid

    def missing(self, entry_ids: list[str]) -> list[str]:
        """Those of `entry_ids` that the store cannot serve, in the same order.

        Whoever asks wants the others soon: they are brought into RAM in the background, as far as there is room.
        """
        if self._entries is None:
            return list(entry_ids)
        missing = self._entries.missing(entry_ids)
        gone = set(missing)
        self._prefetcher.submit(self._prefetch, [one for one in entry_ids if one not in gone])
        return missing

    def take_notes(self) -> dict[str, Any]:
        """What requests left to learn since the last call, as JSON. noted: notes that were ever made"""
        notes, num_added = self.notes.take()
        return {"notes": [note.to_dict() for note in notes], "noted": num_added}

    def expect(self, texts: list[list[int]], salt: str) -> None:
        """Note texts that a client will send, as if they had been generated."""
        for text in texts:
            self.notes.add(Note(salt, answer=as_tokens(text)))

    def weigh(self, weights: dict[str, float]) -> None:
        """Tell the store how likely entries are to be read (`EntryStore.weigh`)."""
        if self.store is not None:
            self.store.weigh(weights)

    def _has(self, entry: str) -> bool:
        return self._entries is not None and not self._entries.missing([entry])

    def _prefetch(self, entry_ids: list[str]) -> None:
        if self.store is None or self._entries is None:
            return
        for entry in entry_ids:
            ram = self.store.stats().tiers["ram"]
            if ram.bytes > _PREFETCH_SHARE * ram.budget_bytes:
                return
            try:
                self._entries.read(entry)  # not the store's: it would tell that one on its way there is lost
            except (EntryMissing, EntryCorrupt):
                continue  # found out again, and counted, when a request needs it

    def close(self) -> None:
        """Stop prefetching, and store what is held."""
        self._prefetcher.shutdown(cancel_futures=True)
        if self._entries is not None:
            self._entries.close()

    def status(self) -> dict[str, Any]:
        """Counters as JSON: totals of finished requests, the last ones, fallbacks by reason, bytes per tier."""
        store = self.store.stats().to_dict() if self.store is not None else {}
        if self._entries is not None:
            store["pending"] += self._entries.pending
        return {
            "fingerprint": self.model,
            "blending": not self.unsupported,
            "unsupported": self.unsupported,
            "totals": {name: self.totals[name] for name in TOTALS},
            "fallbacks": dict(self.reasons),
            "correction": self._correction.summary() if self._correction is not None else None,
            "forwards": self._executor.forwards if self._executor is not None else {},
            "tiers": store.get("tiers", {}),
            "store": {name: value for name, value in store.items() if name != "tiers"},
            "token_bytes": self.store.layout.token_bytes if self.store is not None else 0,
            "notes": {
                "added": self.notes.num_added,
                "dropped": self.notes.num_dropped,
                "waiting": len(self.notes),
            },
            "page_size": self._page_size,
            "recent": [_shown(record) for record in list(self.records)[-32:]],
        }

    def touched(self, after: int) -> dict[str, Any]:
        """The entries that each agent's request reused, from request number `after` + 1 on as far as they are kept."""
        last = self.totals["requests"]
        new = min(max(0, last - after), len(self.records))
        records = list(self.records)[len(self.records) - new :]
        return {"last": last, "requests": [list(record.entries) for record in records if record.entries]}

    def drop(self, entry_ids: list[str]) -> None:
        """Delete entries from every tier."""
        if self._entries is not None:
            for entry in entry_ids:
                self._entries.remove(entry)

    def _account(self, record: RequestRecord) -> None:
        blended = self._loaded.pop(record.request_id, None)
        if blended is not None:
            record = record.with_load(blended)
        self.records.append(record)
        self.totals["requests"] += 1
        for name in TOTALS[1:]:
            self.totals[name] += getattr(record, name)
        if record.fallback:
            self.reasons[record.fallback] += 1

    def pause(self, reason: str) -> None:
        """End blending until restart; what the trial found to be impossible stays the reason."""
        if not self.unsupported:
            self._give_up(reason)

    def _give_up(self, reason: str) -> None:
        self.unsupported = reason
        self._executor = None
        self._report.broken = reason


def _together(ops: Sequence[StoreOp], token_bytes: int) -> Iterator[list[StoreOp]]:
    """Groups that are read at once, in order: as much as fits memory that is used again and again."""
    some: list[StoreOp] = []
    size = 0
    for op in ops:
        size += op.info.num_tokens * token_bytes
        if some and size > _READ_AT_ONCE:
            yield some
            some, size = [], op.info.num_tokens * token_bytes
        some.append(op)
    if some:
        yield some


def _shown(record: RequestRecord) -> dict[str, Any]:
    """A record in the status; what it reused is asked for by itself."""
    return record.summary()


TOTALS = (
    "requests",
    "prompt_tokens",
    "prefix_hit_tokens",
    "reused_tokens",
    "recomputed_tokens",
    "computed_tokens",
)
