"""What tensor-parallel ranks must agree on: each has a store of its own, and all compute the same positions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from vllm.distributed import get_tp_group


def agree_on_lost(lost: Sequence[bool]) -> list[bool]:
    """For each span of a plan, whether any rank lacks its entry. Every rank calls it, with spans in the same order."""
    group = get_tp_group()
    if group.world_size == 1 or not lost:
        return list(lost)
    flags = torch.tensor(lost, dtype=torch.int32)
    torch.distributed.all_reduce(flags, torch.distributed.ReduceOp.MAX, group=group.cpu_group)
    return [bool(flag) for flag in flags]
