"""How far blended answers are from exact ones, over the latest requests that were repeated; when that is too far."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, Final

WINDOW: Final = 200
"""Latest samples that count."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One request repeated.

    kl: KL(exact || blended) of the first token in nats, from the top 20 logprobs; agrees: the same token comes first
    fast_s: what its prefill took, as it was served; exact_s: what an exact one would have, None if not measured
    """

    kl: float
    agrees: bool
    fast_s: float
    exact_s: float | None = None


class Drift:
    """max_kl: a larger mean over the latest samples is too far; min_samples: before that many nothing is"""

    def __init__(self, max_kl: float, min_samples: int) -> None:
        self.max_kl, self.min_samples = max_kl, min_samples
        self.num_added = 0
        self.tripped = ""
        self._samples: deque[Sample] = deque(maxlen=WINDOW)

    @property
    def mean_kl(self) -> float:
        return sum(one.kl for one in self._samples) / max(1, len(self._samples))

    @property
    def agreement(self) -> float:
        """Share of samples whose first token is the same."""
        return sum(one.agrees for one in self._samples) / max(1, len(self._samples))

    def add(self, sample: Sample) -> bool:
        """Whether blending has to end because of it: once, the first time that the mean is too large."""
        self._samples.append(sample)
        self.num_added += 1
        if self.tripped or len(self._samples) < self.min_samples or not self.mean_kl > self.max_kl:
            return False
        self.tripped = (
            f"drift: mean KL {self.mean_kl:.3g} over {len(self._samples)} requests is more than {self.max_kl:g} "
            f"(--shadow-max-kl), {self.agreement:.0%} of first tokens are the same"
        )
        return True

    def to_dict(self) -> dict[str, Any]:
        """As JSON. fast_s, exact_s: means over the samples where both are known, 0 before there is one"""
        timed = [one for one in self._samples if one.exact_s is not None]
        kls = sorted(one.kl for one in self._samples)
        return {
            "samples": self.num_added,
            "mean_kl": self.mean_kl,
            "max_kl": kls[-1] if kls else 0.0,
            "agreement": self.agreement,
            "limit_kl": self.max_kl,
            "min_samples": self.min_samples,
            "tripped": self.tripped,
            "fast_s": sum(one.fast_s for one in timed) / max(1, len(timed)),
            "exact_s": sum(one.exact_s or 0.0 for one in timed) / max(1, len(timed)),
        }
