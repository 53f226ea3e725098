"""LoRA: a step's own requests may use adapters; what is recomputed never does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def without_adapters(runner: Any, num_tokens: int, num_rows: int) -> Iterator[None]:
    """While the context lasts the model computes a batch of so many tokens and rows without any adapter.

    vLLM tells the model's layers which token belongs to which adapter before the step's forward, and so before ours:
    its mapping is of other tokens than ours, and is what it was when the context ends.
    """
    worker = getattr(runner, "lora_manager", None)
    if worker is None:
        yield
        return
    from vllm.lora.layers import LoRAMapping

    manager = worker._adapter_manager
    before = manager._last_mapping
    manager.set_adapter_mapping(LoRAMapping((0,) * num_tokens, (0,) * num_rows, is_prefill=True))
    try:
        yield
    finally:
        if before is not None:
            manager.set_adapter_mapping(before)
