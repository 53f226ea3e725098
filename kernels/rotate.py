"""Moving stored keys to new positions: one more rotation by the distance moved (RoPE rotations compose)."""

from __future__ import annotations

import torch


def rotate_keys(
    keys: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, neox: bool, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Rotate keys by one common angle per frequency, in float32, and round once to their own dtype.

    keys: [..., D], any float dtype; the first `2 * len(cos)` components of D are rotary, the rest is copied
    cos, sin: [R/2] float32, of the distance to move (not of a position)
    neox: component i is paired with i + R/2 (Llama, Qwen); otherwise 2i with 2i + 1 (GPT-J, GLM)
    out: result, shape and dtype of `keys`; it may be `keys` itself. A new tensor when omitted.
    """
    half = cos.shape[-1]
    out = torch.empty_like(keys) if out is None else out
    rotary, result = keys[..., : 2 * half].float(), out[..., : 2 * half]
    if neox:
        first, second = rotary[..., :half], rotary[..., half:]
        result[..., :half] = first * cos - second * sin
        result[..., half:] = second * cos + first * sin
    else:
        first, second = rotary[..., 0::2], rotary[..., 1::2]
        result[..., 0::2] = first * cos - second * sin
        result[..., 1::2] = second * cos + first * sin
    if out is not keys and 2 * half < keys.shape[-1]:
        out[..., 2 * half :] = keys[..., 2 * half :]
    return out
