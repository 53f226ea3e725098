"""The KV connector vLLM loads: `--kv-transfer-config '{"kv_connector": "AgentCacheConnector", ...}'`.

It only translates vLLM's hooks into calls of the two halves, and makes sure that no failure of ours is a failure of
a request: an exception trips the breaker, blending pauses, and vLLM prefills as if the plug-in were not there.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypeVar

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)

from agentcache.errors import AgentCacheError
from agentcache.plugin import process
from agentcache.plugin.messages import StepMetadata, WorkerReport
from agentcache.plugin.stats import RequestStats
from agentcache.plugin.support import engine_facts, layout_of, why_unsupported
from agentcache.plugin.worker import WorkerHalf
from agentcache.settings import EngineSettings, worker_key

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics
    from vllm.forward_context import ForwardContext
    from vllm.v1.attention.backend import AttentionMetadata
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

    from agentcache.plugin.scheduler import SchedulerHalf

logger = logging.getLogger("vllm.agentcache")
T = TypeVar("T")


def _rank(config: VllmConfig, role: KVConnectorRole) -> tuple[int, int]:
    """The tensor-parallel rank whose entries this half deals with, and how many ranks there are.

    The scheduler half, which has a process of its own then, knows what there is from the first rank's store; what
    another one lacks is computed when it turns out, and forgotten.
    """
    ranks = config.parallel_config.tensor_parallel_size
    if ranks == 1 or role == KVConnectorRole.SCHEDULER:
        return 0, ranks
    from vllm.distributed import get_tensor_model_parallel_rank

    return get_tensor_model_parallel_rank(), ranks


class AgentCacheConnector(KVConnectorBase_V1, SupportsHMA):
    """Both halves behind vLLM's interface; which one exists depends on `role`."""

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        from agentcache.models import fingerprint

        settings = EngineSettings.from_dict(dict(self._kv_transfer_config.kv_connector_extra_config))
        page_size = vllm_config.cache_config.block_size
        unsupported = why_unsupported(vllm_config, kv_cache_config)
        self._scheduler: SchedulerHalf | None = None
        self._worker: WorkerHalf | None = None
        model, store = "", None
        if not unsupported:
            try:
                model = fingerprint(
                    vllm_config.model_config.model, **engine_facts(vllm_config, kv_cache_config)
                )
                own = process.of_rank(settings, *_rank(vllm_config, role))
                store = process.shared_store(own, model, layout_of(kv_cache_config))
            except AgentCacheError as error:  # an engine without a store still serves
                unsupported = f"no entry store: {error}"
        if role == KVConnectorRole.WORKER:
            self._worker = WorkerHalf(model, store, kv_cache_config.num_blocks, page_size, unsupported)
            process.WORKER = self._worker
            process.on_evict(self._worker.note_evicted)
        elif role == KVConnectorRole.SCHEDULER:
            # Not before the worker exists: the matcher imports numba, and vLLM's CPU worker walks the globals of all
            # loaded modules when it starts, where one of llvmlite's objects makes it fail (0.32.0).
            from agentcache.match import warm_up
            from agentcache.plugin.reach import Reach
            from agentcache.plugin.scheduler import SchedulerHalf

            warm_up()
            if process.WORKER is not None:  # what its trial has found counts from the first request on
                unsupported = process.WORKER.unsupported
            self._scheduler = SchedulerHalf(settings, model, page_size, unsupported)
            self._scheduler.step_tokens = vllm_config.scheduler_config.max_num_batched_tokens
            self._scheduler.noting = bool(worker_key())  # without one nobody may ask for the notes
            if store is not None:
                self._scheduler.learn_all(store.infos())
                self._scheduler.reach = Reach(store, self._scheduler.rate)
                process.on_evict(self._scheduler.forget)
                process.on_add(self._scheduler.learn_soon)
                self._scheduler.account.tiers = lambda: store.stats().to_dict()["tiers"]
        if unsupported:
            logger.warning("agentcache: this model is served without blending: %s", unsupported)

    @property
    def requires_kv_delivery(self) -> bool:
        return False

    # worker half

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        if self._worker is not None and process.RUNNER is not None:
            self._worker.attach(process.RUNNER, list(kv_caches))

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        if self._worker is not None:
            self._worker.load(self._step(), before_forward=bool(forward_context.attn_metadata))

    def wait_for_save(self) -> None:
        if self._worker is not None and self._connector_metadata is not None:
            self._worker.save(self._step())

    def wait_for_layer_load(self, layer_name: str) -> None:
        return

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: AttentionMetadata, **kwargs: Any
    ) -> None:
        return

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._worker.take_invalid_pages() if self._worker is not None else set()

    def build_connector_worker_meta(self) -> WorkerReport | None:
        return self._worker.take_report() if self._worker is not None else None

    def _step(self) -> StepMetadata:
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, StepMetadata)
        return metadata

    # scheduler half

    def bind_kv_cache_manager(self, kv_cache_manager: KVCacheManager) -> None:
        super().bind_kv_cache_manager(kv_cache_manager)
        if self._scheduler is not None:
            self._scheduler.cache_manager = kv_cache_manager

    def on_new_request(self, request: Request) -> None:
        self._try(lambda half: half.add(request), None)

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        nothing: int | None = 0
        return self._try(lambda half: half.match(request, num_computed_tokens), nothing), False

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        # Not guarded: what was claimed must be filled. `admitted` cannot fail where `match` has not.
        assert self._scheduler is not None
        self._scheduler.admitted(request, tuple(blocks.get_block_ids()[0]), num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        assert self._scheduler is not None
        metadata = self._scheduler.take_loads()
        self._try(lambda half: half.plan_stores(scheduler_output, metadata), None)
        return metadata

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        if self._scheduler is not None:
            self._scheduler.rate.ended()
        report = connector_output.kv_connector_worker_meta
        if isinstance(report, WorkerReport):
            self._try(lambda half: half.report(report), None)

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return False, self._try(lambda half: half.finish(request), None)

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return False, self._try(lambda half: half.finish(request), None)

    def _try(self, call: Callable[[SchedulerHalf], T], otherwise: T) -> T:
        """The scheduler half's answer, or `otherwise` once something is wrong with it: then blending is over."""
        assert self._scheduler is not None
        try:
            return call(self._scheduler)
        except Exception as error:
            if not self._scheduler.unsupported:
                logger.exception("agentcache: blending is paused until restart; requests are prefilled")
            self._scheduler.pause(f"blending paused: {type(error).__name__}: {error}")
            return otherwise

    def get_kv_connector_stats(self) -> RequestStats | None:
        if self._scheduler is None:
            return None
        news = self._try(lambda half: half.account.take(not half.unsupported), None)
        return RequestStats(news) if news is not None else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> RequestStats:
        return RequestStats.totals(data) if data else RequestStats()

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: VllmConfig,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> KVConnectorPromMetrics:
        from agentcache.plugin.metrics import Metrics

        return Metrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        process.close()
