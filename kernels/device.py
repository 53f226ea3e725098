"""Which of a kernel's two ways is taken: Triton on CUDA, torch (or numba) elsewhere."""

from __future__ import annotations

import torch


def on_gpu(tensor: torch.Tensor) -> bool:
    """Whether a Triton kernel works on this tensor. Benchmarks put False here to time torch on the same device."""
    return tensor.is_cuda


def on_gpu_with_fp8(tensor: torch.Tensor) -> bool:
    """The same for kernels that cast to fp8: Ada, Hopper and later."""
    return on_gpu(tensor) and torch.cuda.get_device_capability(tensor.device) >= (8, 9)
