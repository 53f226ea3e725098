"""A model's own chat template, rendered as transformers and vLLM render it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from agentcache.errors import ModelError, UsageError
from agentcache.replay.chat import Chat, text_of

_ITERATES_PARTS = re.compile(r"for\s+\w+\s+in\s+\w+(?:\.content|\[['\"]content['\"]\])")
"""How a template shows that it wants a message's content as parts; vLLM then hands it parts, else one text."""


class ChatTemplate:
    """Messages and tools to a prompt.

    source: the Jinja template; special: named special tokens of the tokenizer (`bos_token` and so on)
    """

    def __init__(self, source: str, special: Mapping[str, str]) -> None:
        self._special = dict(special)
        self._as_parts = bool(_ITERATES_PARTS.search(source))
        self._template = _environment().from_string(source)

    @cached_property
    def end_mark(self) -> str:
        """What the template puts behind the model's words; "" where it shows them otherwise than it asks for them."""
        asked: list[dict[str, Any]] = [{"role": "user", "content": "?"}]
        prompt = self.render(Chat(asked, None))
        whole = self.render(Chat([*asked, {"role": "assistant", "content": "answer"}], None), ask=False)
        head, answer, mark = whole.rpartition("answer")
        return mark if answer and head == prompt else ""

    @classmethod
    def of_folder(cls, folder: Path) -> ChatTemplate:
        """The template of a model folder. ModelError if it has none."""
        config_path = folder / "tokenizer_config.json"
        config = json.loads(config_path.read_text()) if config_path.is_file() else {}
        path = folder / "chat_template.jinja"
        source = path.read_text() if path.is_file() else config.get("chat_template")
        if isinstance(source, list):
            named = {entry["name"]: entry["template"] for entry in source}
            source = named.get("default")
        if not isinstance(source, str):
            raise ModelError(f"{folder} has no chat template: take an instruction-tuned model's folder")
        special = {
            name: value["content"] if isinstance(value, Mapping) else value
            for name, value in config.items()
            if name.endswith("_token") and isinstance(value, str | Mapping)
        }
        return cls(source, special)

    def render(self, chat: Chat, *, ask: bool = True) -> str:
        """The prompt of a chat; with `ask`, it ends where the model is to answer. UsageError if it is refused."""
        try:
            return self._template.render(
                messages=[self._message(message) for message in chat.messages],
                tools=chat.tools,
                documents=None,
                add_generation_prompt=ask,
                **self._special,
            )
        except (TemplateError, TypeError, ValueError, KeyError) as error:
            raise UsageError(
                f"the model's chat template refuses a request: {error}; try another --tokenizer"
            ) from error

    def _message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        content = message.get("content")
        if not self._as_parts:
            return {**message, "content": text_of(content)}
        if isinstance(content, str):
            return {**message, "content": [{"type": "text", "text": content}]}
        return dict(message)


class _Generation(Extension):
    """`{% generation %}` marks the model's own text for training; what is inside is rendered as it stands."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own protocol)

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **more: Any) -> str:
    """Unlike Jinja's own, it escapes neither HTML nor Unicode."""
    separators: Callable[[Any], Any] = lambda pair: tuple(pair) if isinstance(pair, Sequence) else pair  # noqa: E731
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators(more.get("separators")),
        sort_keys=bool(more.get("sort_keys", False)),
    )


def _refuse(message: str) -> None:
    raise TemplateError(message)
