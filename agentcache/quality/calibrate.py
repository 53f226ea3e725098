"""Measuring a model's correction (`agentcache.blend.correction`) on real code that is always at hand: agentcache's own.

Several prompts are prefilled in full, and compared with entries of the same code computed as the warm worker does:
files front to back, and functions by themselves. How strongly the mean deviation is applied is what the predictions
say: for each prompt, those with the means over all the others.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Final

import agentcache
from agentcache.context import Stream, Streams
from agentcache.entry import Tokens, as_tokens
from agentcache.indexer import Block
from agentcache.plan import Plan, RecomputePolicy

if TYPE_CHECKING:
    import torch

    from agentcache.blend.correction import Correction, Deviations
    from agentcache.quality.probe import Probe

SCORED: Final = 64
"""Last tokens of a prompt whose predictions are compared."""
STRENGTHS: Final = (0.0, 0.5, 0.75, 1.0)
_PROMPTS: Final = 3
"""Of either kind."""
_CODE_TOKENS: Final = 1100
_MIN_CODE_TOKENS: Final = 400
_TAIL_TOKENS: Final = 120
_FOLDERS: Final = (".", "blend", "context", "learn", "plan", "plugin", "replay", "store", "warm")
_FILE_TOKENS: Final = range(150, 700)
_FUNCTION_TOKENS: Final = range(48, 300)
_HEAD: Final = "You are a coding assistant. Answer from the code you are given.\n\n"
_DOMAIN: Final = "calibration"


@dataclass(frozen=True, slots=True)
class Sample:
    """One prompt. tokens: int32, the last SCORED are its continuation; streams: of the code in it"""

    tokens: Tokens
    streams: tuple[Stream, ...]

    @property
    def num_prompt(self) -> int:
        return len(self.tokens) - SCORED


@dataclass(frozen=True, slots=True)
class _File:
    name: str
    data: bytes
    blocks: tuple[Block, ...]
    num_tokens: int

    def text(self, block: Block) -> str:
        return self.data[block.start_byte : block.end_byte].decode()


def samples(streams: Streams) -> list[Sample]:
    """Prompts of whole files and of single functions; none where the engine takes only short ones."""
    room = min(_CODE_TOKENS, streams.max_tokens - 3 * _TAIL_TOKENS)
    if room < _MIN_CODE_TOKENS:
        return []
    rng = random.Random(0)
    files = rng.sample(found := list(_files(streams)), len(found))
    made: list[Sample] = []
    for number in range(2 * _PROMPTS):
        rng.shuffle(files)
        last = next(file for file in files if file.num_tokens >= _TAIL_TOKENS)
        others = [file for file in files if file is not last]
        shown = (
            _of_files(others, room, streams) if number < _PROMPTS else _of_functions(others, room, streams)
        )
        body = "".join(f"{title}\n```python\n{text}```\n\n" for title, text, _ in shown)
        ids = streams.encode(f"{_HEAD}{body}Continue {last.name}:\n\n")
        tail = streams.encode(last.data.decode())[:_TAIL_TOKENS]
        made.append(
            Sample(
                as_tokens([*streams.head, *ids, *tail]),
                tuple(stream for _, _, some in shown for stream in some),
            )
        )
    return made


def calibrate(probe: Probe, prompts: Sequence[Sample], policy: RecomputePolicy) -> Correction | None:
    """The correction that helps most where requests get `policy`; None if too little could be measured.

    One forward of every prompt in full, one of its code, and a short one for each strength.
    """
    from agentcache.blend.correction import Correction

    measured = [one for prompt in prompts if (one := _measure(probe, prompt, policy)) is not None]
    if len(measured) < 2:
        return None
    total = measured[0].deviations
    for one in measured[1:]:
        total = total + one.deviations
    kl = {
        strength: fmean(
            one.kl(probe, policy, Correction((total - one.deviations).means(), strength, 0, 0.0, 0.0))
            for one in measured
        )
        for strength in STRENGTHS
    }
    probe.correct(None)
    probe.forget()
    best = min(kl, key=kl.__getitem__)
    return Correction(total.means(), best, total.tokens, kl[0.0], kl[best])


@dataclass(frozen=True, slots=True)
class _Measured:
    """One prompt. full: its predictions by full prefill, float32 [SCORED, V] log-probabilities"""

    sample: Sample
    plan: Plan
    deviations: Deviations
    full: torch.Tensor

    def kl(self, probe: Probe, policy: RecomputePolicy, correction: Correction) -> float:
        """Mean KL of the blended predictions with a correction."""
        probe.correct(correction)
        with probe.pages(len(self.sample.tokens)) as (own,):
            blended, _ = probe.blended(self.plan, policy, self.sample.tokens, self.sample.num_prompt, own)
        return float((self.full.exp() * (self.full - blended)).sum(-1).mean())


def _measure(probe: Probe, sample: Sample, policy: RecomputePolicy) -> _Measured | None:
    entries = probe.learn([(stream.tokens, stream.cuts) for stream in sample.streams], _DOMAIN)
    plan = probe.plan(entries, sample.tokens, sample.num_prompt, policy, _DOMAIN)
    with probe.pages(len(sample.tokens)) as (own,):
        full = probe.full(sample.tokens, sample.num_prompt, own)
        deviations = probe.deviations(plan, own)
    return _Measured(sample, plan, deviations, full) if deviations is not None else None


def _files(streams: Streams) -> list[_File]:
    from agentcache.indexer.parse import parse_bytes

    root = Path(agentcache.__file__).parent
    found: list[_File] = []
    for path in sorted(path for folder in _FOLDERS for path in (root / folder).glob("*.py")):
        data = path.read_bytes()
        num_tokens = streams.count(data.decode())
        if num_tokens in _FILE_TOKENS:
            name = path.relative_to(root.parent).as_posix()
            blocks = tuple(
                Block(one.id, name, one.kind, one.name, *one[4:], one.scope)
                for one in parse_bytes(data, "python").blocks
            )
            found.append(_File(name, data, blocks, num_tokens))
    return found


_Shown = list[tuple[str, str, list[Stream]]]
"""Title, text and streams of each piece."""


def _of_files(files: Sequence[_File], room: int, streams: Streams) -> _Shown:
    shown: _Shown = []
    for file in files:
        if file.num_tokens <= room:
            shown.append((file.name, file.data.decode(), streams.of_file(file.data, file.blocks)))
            room -= file.num_tokens
    return shown


def _of_functions(files: Sequence[_File], room: int, streams: Streams) -> _Shown:
    shown: _Shown = []
    for file in files:
        for block in file.blocks:
            size = streams.count(file.text(block))
            stream = streams.alone(file.data, block)
            if block.kind in ("function", "method") and size in _FUNCTION_TOKENS and size <= room and stream:
                shown.append((f"{file.name}#{block.name}", file.text(block), [stream]))
                room -= size
                break
    return shown
