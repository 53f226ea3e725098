"""Figures that compare two sets of predictions over the whole vocabulary."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Agreement:
    """Of one continuation, teacher-forced, blended against full prefill.

    mean_kl: KL(full || blended) in nats, mean over the positions
    top1: share of positions whose most likely token is the same
    dnll: mean negative log-likelihood of the true tokens, blended minus full
    max_abs: largest difference of any log-probability
    """

    mean_kl: float
    top1: float
    dnll: float
    max_abs: float


def agreement(full: torch.Tensor, blended: torch.Tensor, targets: torch.Tensor) -> Agreement:
    """full, blended: log-probabilities, float32 [n, V]; targets: the true next tokens, int64 [n]."""
    kl = (full.exp() * (full - blended)).sum(-1)
    chosen = targets[:, None]
    dnll = full.gather(1, chosen) - blended.gather(1, chosen)
    return Agreement(
        mean_kl=float(kl.mean()),
        top1=float((full.argmax(-1) == blended.argmax(-1)).float().mean()),
        dnll=float(dnll.mean()),
        max_abs=float((full - blended).abs().max()),
    )
