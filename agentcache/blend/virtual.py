"""Selective recompute as a batch of virtual requests.

A run [a, b) of prompt positions that must be recomputed is one row of a batch: query length b - a, sequence
length b, and the *same block table* as the real request. Any attention backend then applies the exact causal
mask to every recomputed token, writes its K/V into its page, and reads everybody else's.

    block table of the request   | page 7 | page 2 | page 9 | ...
    row 0: run [0, 16)             query 16, sees positions 0..15
    row 1: run [700, 716)          query 16, sees positions 0..715 (reused K/V and row 0's new K/V)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from vllm.v1.attention.backend import CommonAttentionMetadata

from agentcache.plan import Runs


class VirtualBatch:
    """Builds attention metadata for virtual requests, with metadata builders of its own.

    The runner's builders are not touched: they have already prepared the step's real batch, and some keep that
    preparation in buffers that a second `build` would overwrite.
    """

    def __init__(self, runner: Any) -> None:
        self._groups: list[tuple[list[str], Any]] = []
        for group in (g for groups in runner.attn_groups for g in groups):
            spec = group.get_metadata_builder().kv_cache_spec
            builder = type(group.get_metadata_builder())(
                spec, group.layer_names, runner.vllm_config, runner.device
            )
            self._groups.append((group.layer_names, builder))
        self._device = runner.device

    def metadata(
        self, runs: Runs, block_tables: torch.Tensor, slots: torch.Tensor
    ) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """Per-layer attention metadata and slot mapping for one forward over `runs`.

        block_tables: int32 [runs, pages], page ids of the request each run is of; slots: int64 [tokens], one a token.
        """
        num_rows = len(runs)
        query_lens = torch.from_numpy((runs[:, 1] - runs[:, 0]).astype(np.int32))
        seq_lens_cpu = torch.from_numpy(runs[:, 1].astype(np.int32))
        starts_cpu = torch.zeros(num_rows + 1, dtype=torch.int32)
        torch.cumsum(query_lens, 0, out=starts_cpu[1:])
        common = CommonAttentionMetadata(
            query_start_loc=starts_cpu.to(self._device),
            query_start_loc_cpu=starts_cpu,
            seq_lens=seq_lens_cpu.to(self._device),
            num_reqs=num_rows,
            num_actual_tokens=len(slots),
            max_query_len=int(query_lens.max()),
            max_seq_len=int(seq_lens_cpu.max()),
            block_table_tensor=block_tables,
            slot_mapping=slots,
            causal=True,
            is_prefilling=torch.ones(num_rows, dtype=torch.bool),
            seq_lens_cpu_upper_bound=seq_lens_cpu,
        )
        per_layer: dict[str, Any] = {}
        for layer_names, builder in self._groups:
            built = builder.build(common_prefix_len=0, common_attn_metadata=common)
            per_layer.update(dict.fromkeys(layer_names, built))
        return per_layer, dict.fromkeys(per_layer, slots)
