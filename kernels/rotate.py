"""Moving stored keys to new positions: one more rotation by the distance moved (RoPE rotations compose)."""

from __future__ import annotations

import torch

from agentcache.kernels import device


def rotate_keys(
    keys: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    neox: bool,
    first: int = 0,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Rotate keys pair by pair, in float32, and round once to their own dtype.

    keys: [n, H, D], any float dtype; R components of D are rotary, the rest is copied
    cos, sin: [n, 1, R/2] float32, of the distance each key moves (not of a position)
    neox: component i is paired with i + R/2 (Llama, Qwen); otherwise 2i with 2i + 1 (GPT-J, GLM)
    first: the first rotary component; 0 in most models, D - R in DeepSeek's
    out: result, shape and dtype of `keys`; not `keys` itself. A new tensor when omitted.

    Fast on the CPU where [n, H, D] fits the processor's cache: call it once a layer.
    On CUDA it is a Triton kernel (`rotate_gpu`). `rotate_keys_reference` says the same.
    """
    out = torch.empty_like(keys) if out is None else out
    if device.on_gpu(keys):
        from agentcache.kernels.rotate_gpu import rotate

        rotate(keys, cos, sin, out, neox, first)
        return out
    half = cos.shape[-1]
    last = first + 2 * half
    source = keys[..., first:last].float()
    turned = torch.empty_like(source)
    if neox:
        real, imag = source[..., :half], source[..., half:]
        to_real, to_imag = turned[..., :half], turned[..., half:]
    else:
        real, imag = source[..., 0::2], source[..., 1::2]
        to_real, to_imag = turned[..., 0::2], turned[..., 1::2]
    torch.mul(real, cos, out=to_real)
    to_real.addcmul_(imag, sin, value=-1)
    torch.mul(imag, cos, out=to_imag)
    to_imag.addcmul_(real, sin)
    out[..., first:last] = turned
    out[..., :first] = keys[..., :first]
    out[..., last:] = keys[..., last:]
    return out


def rotate_keys_reference(
    keys: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, neox: bool, first: int = 0
) -> torch.Tensor:
    """The same as complex numbers: (a + ib) e^(i angle). Slow and obvious; same arguments as `rotate_keys`."""
    half = cos.shape[-1]
    last = first + 2 * half
    rotary = keys[..., first:last].float()
    if neox:
        pairs = torch.complex(rotary[..., :half].contiguous(), rotary[..., half:].contiguous())
    else:
        pairs = torch.complex(rotary[..., 0::2].contiguous(), rotary[..., 1::2].contiguous())
    pairs = pairs * torch.complex(cos, sin)
    if neox:
        turned = torch.cat([pairs.real, pairs.imag], dim=-1)
    else:
        turned = torch.stack([pairs.real, pairs.imag], dim=-1).flatten(-2)
    return torch.cat([keys[..., :first], turned.to(keys.dtype), keys[..., last:]], dim=-1)
