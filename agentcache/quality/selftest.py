"""Does blending work with this model, on this machine? Tried on the engine itself, against its own full prefill.

parity    K/V computed in the prompt's own context are put back through entries, random runs between them are
          recomputed: the predictions must be those of a full prefill
control   the same with every reused key at a wrong position: it must be noticed, or the first check means nothing
blending  two files in another order than they were computed in: how far the predictions are from full prefill
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

import agentcache
from agentcache.context import Streams
from agentcache.entry import as_tokens
from agentcache.plan import Plan, RecomputePolicy, Span

if TYPE_CHECKING:
    import torch

    from agentcache.quality.agreement import Agreement
    from agentcache.quality.probe import Probe

SCORED: Final = 48
"""Last tokens of the tail whose predictions are compared."""
MAX_PARITY_KL: Final = {"float32": 1e-5}
MAX_PARITY_KL_16_BIT: Final = 5e-3
"""Nats. Two full prefills in 16 bits that are cut into different batches differ by about a tenth of it."""
MAX_BLENDED_KL: Final = 0.2
MIN_BLENDED_TOP1: Final = 0.75
"""A model that garbles under blending is far outside: nothing recomputed at all gives about 0.1 on code."""
_FILE_TOKENS, _TAIL_TOKENS = 600, 120
_PIECE = 64
_WRONG_SHIFT = 9


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison: `value` had to be below (or above) `limit`."""

    name: str
    value: float
    limit: float
    ok: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """ok: blending may be used; reason: why not, "" if it may

    correction: figures of what is added to reused K/V (`Correction.summary`), None if that was not measured
    """

    ok: bool
    reason: str
    tokens: int
    checks: tuple[Check, ...]
    correction: dict[str, float] | None = None

    @classmethod
    def not_tried(cls, reason: str) -> Verdict:
        """There is nothing to try, or nothing to try it with."""
        return cls(False, f"not tried: {reason}", 0, ())

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def sample(tokenizer: str, max_tokens: int) -> tuple[list[list[int]], list[int]]:
    """Token ids of real code that is always at hand: two of agentcache's own files, the beginning of a third.

    tokenizer: local folder or hub id; max_tokens: longest prompt. Raises ModelError.
    """
    folder = Path(agentcache.__file__).parent
    streams = Streams(tokenizer, max_tokens)
    ids = [
        streams.encode((folder / name).read_text()) for name in ("engine_client.py", "entry.py", "paths.py")
    ]
    length = min(_FILE_TOKENS, (max_tokens - _TAIL_TOKENS) // 2)
    return [one[:length] for one in ids[:2]], ids[2][:_TAIL_TOKENS]


def run(
    probe: Probe, files: Sequence[Sequence[int]], tail: Sequence[int], policy: RecomputePolicy, dtype: str
) -> Verdict:
    """Try everything with real text.

    files: token ids of at least two files; tail: of what follows them, more than SCORED
    policy: what requests will get; dtype: of the engine's K/V, as torch names it
    """
    if len(files) < 2 or len(tail) <= SCORED or min(map(len, files)) < 2 * _PIECE:
        raise ValueError("a self-test takes at least two files of 128 tokens and a tail of 49")
    tokens = as_tokens([token for file in reversed(files) for token in file] + list(tail))
    num_prompt = len(tokens) - SCORED
    with probe.pages(len(tokens), len(tokens)) as (ours, theirs):
        full = probe.full(tokens, num_prompt, ours)

        def compare(plan: Plan, used: RecomputePolicy) -> Agreement:
            from agentcache.quality.agreement import agreement

            blended, _ = probe.blended(plan, used, tokens, num_prompt, theirs)
            return agreement(full, blended, _as_targets(tokens[num_prompt:]))

        boundary = RecomputePolicy()
        right = _own_context(probe, tokens, num_prompt)
        wrong = replace(right, spans=tuple(replace(span, shift=_WRONG_SHIFT) for span in right.spans))
        parity, control = compare(right, boundary), compare(wrong, boundary)
        streams = [(as_tokens(file), (0, len(file))) for file in files]
        plan = probe.plan(probe.learn(streams, "selftest"), tokens, num_prompt, policy, "selftest")
        blended = compare(plan, policy)
    probe.forget()
    limit = MAX_PARITY_KL.get(dtype, MAX_PARITY_KL_16_BIT)
    noticed = max(limit, 4 * parity.mean_kl)
    checks = (
        Check("recompute equals full prefill, KL", parity.mean_kl, limit, parity.mean_kl <= limit),
        Check("a wrong position is noticed, KL", control.mean_kl, noticed, control.mean_kl > noticed),
        Check("blended prediction, KL", blended.mean_kl, MAX_BLENDED_KL, blended.mean_kl <= MAX_BLENDED_KL),
        Check("blended top-1 agreement", blended.top1, MIN_BLENDED_TOP1, blended.top1 >= MIN_BLENDED_TOP1),
        Check("tokens reused", plan.num_matched / num_prompt, 0.5, plan.num_matched >= 0.5 * num_prompt),
    )
    failed = [check for check in checks if not check.ok]  # a NaN compares as false: it fails
    reason = "; ".join(f"{check.name}: {check.value:.3g}, limit {check.limit:.3g}" for check in failed)
    return Verdict(not failed, reason, len(tokens), checks)


def _own_context(probe: Probe, tokens: Any, num_prompt: int) -> Plan:
    """Entries of the prompt itself, every second one reused whole, the others recomputed in part."""
    stop = num_prompt - 1
    cuts = (*range(0, stop, _PIECE), stop)
    infos = probe.learn([(tokens[:stop], cuts)], "own context")
    spans = tuple(
        Span(info.position, info.num_tokens, info.id, 0, 0, context_stands=True, exact=True) for info in infos
    )
    rng = np.random.default_rng(0)
    chosen: list[np.ndarray[Any, np.dtype[np.int64]]] = []
    for info in infos[1::2]:
        begin = info.position + int(rng.integers(0, max(1, info.num_tokens - 1)))
        length = int(rng.integers(1, info.position + info.num_tokens - begin + 1))
        chosen.append(np.arange(begin, begin + length, dtype=np.int64))
    return Plan(0, stop, spans, np.concatenate(chosen))


def _as_targets(tokens: Any) -> torch.Tensor:
    import torch

    return torch.from_numpy(tokens).long()
