"""What tensor-parallel ranks must agree on: each has a store of its own, and all compute the same positions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from vllm.distributed import get_tp_group


def rank() -> int:
    """This worker's, among the tensor-parallel ones."""
    return int(get_tp_group().rank_in_group)


def agree(wrong: Sequence[bool]) -> list[bool]:
    """For each thing, whether it is wrong on any rank: a span without its entry, a failure.

    Every rank calls it, with the same things in the same order.
    """
    group = get_tp_group()
    if group.world_size == 1 or not wrong:
        return list(wrong)
    flags = torch.tensor(wrong, dtype=torch.int32)
    torch.distributed.all_reduce(flags, torch.distributed.ReduceOp.MAX, group=group.cpu_group)
    return [bool(flag) for flag in flags]
