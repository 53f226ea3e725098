"""Moving stored keys to new positions: one more rotation by the distance moved (RoPE rotations compose)."""

from __future__ import annotations

import torch


def rotate_keys(
    keys: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    neox: bool,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Rotate keys pair by pair, in float32, and round once to their own dtype.

    keys: [n, H, D], any float dtype; the first R components of D are rotary, the rest is copied
    cos, sin: [n, 1, R/2] float32, of the distance each key moves (not of a position)
    neox: component i is paired with i + R/2 (Llama, Qwen); otherwise 2i with 2i + 1 (GPT-J, GLM)
    out: result, shape and dtype of `keys`; not `keys` itself. A new tensor when omitted.

    Fast where [n, H, D] fits the processor's cache: call it once a layer. `rotate_keys_reference` says the same.
    """
    half = cos.shape[-1]
    out = torch.empty_like(keys) if out is None else out
    source = keys[..., : 2 * half].float()
    turned = torch.empty_like(source)
    if neox:
        first, second = source[..., :half], source[..., half:]
        to_first, to_second = turned[..., :half], turned[..., half:]
    else:
        first, second = source[..., 0::2], source[..., 1::2]
        to_first, to_second = turned[..., 0::2], turned[..., 1::2]
    torch.mul(first, cos, out=to_first)
    to_first.addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=to_second)
    to_second.addcmul_(first, sin)
    if 2 * half < keys.shape[-1]:
        out[..., : 2 * half] = turned
        out[..., 2 * half :] = keys[..., 2 * half :]
    else:
        out.copy_(turned)
    return out


def rotate_keys_reference(
    keys: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, neox: bool
) -> torch.Tensor:
    """The same as complex numbers: (a + ib) e^(i angle). Slow and obvious; same arguments as `rotate_keys`."""
    half = cos.shape[-1]
    rotary = keys[..., : 2 * half].float()
    if neox:
        pairs = torch.complex(rotary[..., :half].contiguous(), rotary[..., half:].contiguous())
    else:
        pairs = torch.complex(rotary[..., 0::2].contiguous(), rotary[..., 1::2].contiguous())
    pairs = pairs * torch.complex(cos, sin)
    if neox:
        turned = torch.cat([pairs.real, pairs.imag], dim=-1)
    else:
        turned = torch.stack([pairs.real, pairs.imag], dim=-1).flatten(-2)
    return torch.cat([turned.to(keys.dtype), keys[..., 2 * half :]], dim=-1)
