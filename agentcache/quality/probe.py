"""What a worker's model predicts behind a prompt: after full prefill, or after a plan, over the whole vocabulary.

It runs inside a worker, between two steps, on pages that it borrows and gives back as they were. The entries it makes
stay in its own memory: nothing of a probe can be seen by a request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch

from agentcache.blend.correction import Correction, Deviations
from agentcache.blend.executor import BlendExecutor, BlendResult
from agentcache.blend.forward import PagedForward
from agentcache.blend.pages import PagedKV
from agentcache.blend.rope import KeyShift
from agentcache.entry import EntryInfo, Tokens, entries_of_stream
from agentcache.match import Matcher
from agentcache.plan import Plan, RecomputePolicy, plan_prompt, reused_positions

Pages = tuple[int, ...]
_MODEL = "probe"


class Probe:
    """One worker's model, its pages, and entries made for the purpose."""

    def __init__(self, forward: PagedForward, paged: PagedKV, shift: KeyShift) -> None:
        self._forward = forward
        self._paged = paged
        self._shift = shift
        self._kv: dict[str, torch.Tensor] = {}
        self._executor = BlendExecutor(forward, paged, shift, self._kv.__getitem__, (KeyError,))

    @contextmanager
    def pages(self, *lengths: int) -> Iterator[list[Pages]]:
        """Pages for prompts of so many tokens each, the last of the pool, restored afterwards."""
        size, total = self._paged.page_size, self._paged.num_pages
        groups: list[Pages] = []
        end = total
        for length in lengths:
            count = -(-length // size)
            groups.append(tuple(range(end - count, end)))
            end -= count
        if end < 1:  # page 0 is vLLM's null page
            raise ValueError(f"{sum(lengths)} tokens do not fit the engine's {total} pages of {size}")
        with self._paged.borrowed(range(end, total)):
            yield groups

    @torch.inference_mode()
    def learn(self, streams: Sequence[tuple[Tokens, Sequence[int]]], domain: str) -> list[EntryInfo]:
        """Compute streams (tokens, cuts) front to back and keep their pieces, as the warm worker makes them."""
        infos = [entries_of_stream(_MODEL, domain, tokens, cuts) for tokens, cuts in streams]
        new = [i for i, own in enumerate(infos) if not all(info.id in self._kv for info in own)]
        with self.pages(*[len(streams[i][0]) for i in new]) as pages:
            self._forward.prefill([(streams[i][0], own) for i, own in zip(new, pages, strict=True)])
            for i, own in zip(new, pages, strict=True):
                for info in infos[i]:
                    where = torch.arange(info.position, info.position + info.num_tokens)
                    self._kv[info.id] = self._paged.read(self._paged.slots(own, where))
        return [info for own in infos for info in own]

    def correct(self, correction: Correction | None) -> None:
        """What `blended` adds to reused K/V from now on; nothing at first."""
        self._executor.correct(correction)

    @torch.inference_mode()
    def deviations(self, plan: Plan, pages: Pages) -> Deviations | None:
        """Of the tokens that a plan reuses, behind a full prefill on `pages`; None if there are none."""
        reused = np.zeros(plan.stop, dtype=bool)
        reused[reused_positions(plan)] = True
        total: Deviations | None = None
        for span in plan.spans:
            own = torch.from_numpy(np.flatnonzero(reused[span.start : span.stop]))
            if span.exact or not len(own):
                continue
            new = span.start + own
            full = self._paged.read(self._paged.slots(pages, new))
            found = Deviations.of(
                full, self._kv[span.entry][:, :, span.offset + own], new, new - span.shift, self._shift
            )
            total = found if total is None else total + found
        return total

    def forget(self) -> None:
        """Drop all entries."""
        self._kv.clear()

    def plan(
        self,
        entries: Sequence[EntryInfo],
        tokens: Tokens,
        num_prompt: int,
        policy: RecomputePolicy,
        domain: str,
    ) -> Plan:
        """What the engine would do with the prompt `tokens[:num_prompt]` if it had just these entries."""
        matcher = Matcher()
        for info in entries:
            matcher.add(info)
        spans = matcher.match(tokens[:num_prompt], salts=(domain,))
        plan = plan_prompt(tokens[:num_prompt], 0, spans, policy)
        return plan or Plan(0, 0, (), np.empty(0, np.int64))

    @torch.inference_mode()
    def full(self, tokens: Tokens, num_prompt: int, pages: Pages) -> torch.Tensor:
        """Prefill all; log-probabilities [len(tokens) - num_prompt, V] of what follows each of the last tokens.

        Row i predicts the token at num_prompt + i; the last token's own prediction is not among them.
        """
        return self._behind(tokens, num_prompt, pages, 0)

    @torch.inference_mode()
    def blended(
        self, plan: Plan, policy: RecomputePolicy, tokens: Tokens, num_prompt: int, pages: Pages
    ) -> tuple[torch.Tensor, BlendResult]:
        """The same after a plan: as `full`, and what the plan took."""
        prompt = tokens[:num_prompt]
        result = self._executor.execute(plan, prompt, pages, policy.strategy, policy.budget or 0.0)
        return self._behind(tokens, num_prompt, pages, plan.stop), result

    @torch.inference_mode()
    def greedy(
        self, firsts: Sequence[int], position: int, count: int, pages: Sequence[Pages]
    ) -> list[list[int]]:
        """`count` greedy tokens of several filled prompts of one length, each begun by its first token."""
        written = [[first] for first in firsts]
        for at in range(position, position + count - 1):
            hidden = self._forward.step(at, [one[-1] for one in written], pages)
            for one, token in zip(written, self._forward.logits(hidden).argmax(-1).tolist(), strict=True):
                one.append(token)
        return written

    def keys_at_layer(self, layer: int, tokens: Tokens, pages: Pages) -> torch.Tensor:
        """The keys that lie in the pages: [n, H, D]."""
        return self._paged.read_layer(layer, self._paged.slots(pages, torch.arange(len(tokens))))[0]

    def _behind(self, tokens: Tokens, num_prompt: int, pages: Pages, start: int) -> torch.Tensor:
        hidden = self._forward.run(np.arange(start, len(tokens), dtype=np.int64), tokens, pages)
        wanted = hidden[num_prompt - 1 - start : len(tokens) - 1 - start]
        return self._forward.logits(wanted).log_softmax(-1)
