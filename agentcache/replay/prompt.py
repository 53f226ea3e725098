"""A request as the engine sees it: token ids, and what kind of text each of them is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from agentcache.entry import Tokens, as_tokens
from agentcache.errors import ModelError, UsageError
from agentcache.replay.chat import Chat, answer_message, chat_of
from agentcache.replay.kinds import Kind, Kinds, Stretch, kinds_of, stretches
from agentcache.replay.template import ChatTemplate
from agentcache.replay.tokenize import LineEncoder
from agentcache.replay.trace import Request

_BATCH = 64


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """One request's prompt.

    text: as the chat template renders it; tokens: int32 [n]; starts: the character each begins at, int64 [n]
    kinds: a `Kind` a token, uint8 [n]
    generated: the answer's tokens as the engine generates them behind the prompt, end mark left out
    answer: the answer's text by itself: what later prompts may show elsewhere
    """

    request: Request
    text: str
    tokens: Tokens
    starts: npt.NDArray[np.int64]
    kinds: Kinds
    generated: Tokens
    answer: str

    def __len__(self) -> int:
        return len(self.tokens)

    def excerpt(self, start: int, stop: int, limit: int = 200) -> str:
        """The text of tokens [start, stop), at most `limit` characters of it; "" for prompts of token ids."""
        first = int(self.starts[start])
        last = int(self.starts[stop]) if stop < len(self) else len(self.text)
        return self.text[first : min(last, first + limit)]


class Prompter:
    """Turns requests into prompts with one model's tokenizer and chat template.

    folder: of the model. ModelError if it lacks either; without a template only completions can be read.
    """

    def __init__(self, folder: Path) -> None:
        self._encoder = LineEncoder.of_folder(folder)
        self._template: ChatTemplate | None
        try:
            self._template = ChatTemplate.of_folder(folder)
        except ModelError as error:
            self._template, self._why = None, error

    def encode(self, text: str) -> Tokens:
        """Tokens of a text by itself."""
        return self._encoder.encode([text])[0].ids

    def prompts(self, requests: Sequence[Request]) -> Iterator[Prompt]:
        """The prompts in order. UsageError for a request that the template or the reader refuses."""
        for first in range(0, len(requests), _BATCH):
            yield from self._batch(requests[first : first + _BATCH])

    def _batch(self, requests: Sequence[Request]) -> Iterator[Prompt]:
        texts: list[str] = []
        answers: list[str] = []
        kinds: list[list[Stretch]] = []
        for request in requests:
            if request.api == "completions":
                text, found = self._plain(request), []
                answers.append(request.answer.text)
            else:
                chat = chat_of(request)
                text = self._render(chat)
                found = stretches(text, chat)
                answers.append(self._generated(chat, text, request))
            texts.append(text)
            kinds.append(found)
        encoded = self._encoder.encode(texts)
        generated = self._encoder.encode(answers)
        for request, text, found, own, new in zip(requests, texts, kinds, encoded, generated, strict=True):
            ids, starts = own
            if request.api == "completions":
                given = request.body["prompt"]
                if isinstance(given, list):
                    ids, starts = as_tokens(given), np.zeros(len(given), np.int64)
                else:
                    head = self._encoder.head
                    ids = np.concatenate([head, ids])
                    starts = np.concatenate([np.zeros(len(head), np.int64), starts])
                kind = np.full(len(ids), Kind.OTHER, np.uint8)
            else:
                kind = kinds_of(starts, found)
            yield Prompt(request, text, ids, starts, kind, new.ids, request.answer.text)

    def _render(self, chat: Chat) -> str:
        if self._template is None:
            raise self._why
        return self._template.render(chat)

    def _generated(self, chat: Chat, prompt: str, request: Request) -> str:
        """What the model wrote behind the prompt: the answer as the template shows it in the next turn, up to
        its end mark; by itself where the template shows it otherwise."""
        if not request.answer or self._template is None:
            return ""
        message = answer_message(request.answer)
        whole = self._template.render(Chat([*chat.messages, message], chat.tools), ask=False)
        if not whole.startswith(prompt):
            return request.answer.text
        return whole[len(prompt) :].removesuffix(self._template.end_mark)

    def _plain(self, request: Request) -> str:
        given = request.body.get("prompt")
        if isinstance(given, str):
            return given
        if isinstance(given, list) and all(isinstance(token, int) for token in given):
            return ""
        raise UsageError(f"request {request.number} of {request.source} has no prompt that can be read")
