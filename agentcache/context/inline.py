"""References inside of chat messages: `{{agentcache:path#Name}}` is replaced by the text it names.

A backslash in front makes it literal text: `\\{{agentcache:` becomes `{{agentcache:`; two of them are a backslash and a
reference. Text that was put in is not looked at again. What the model wrote (`assistant`) is left alone. What a tool
returned is data: a reference in it is replaced if it names something, and stays as it is if not, because no agent can
take it back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from agentcache.context.assemble import MAX_BYTES, MAX_ITEMS
from agentcache.context.reference import shown
from agentcache.errors import ReferenceError_

OPENING = "{{agentcache:"
MARKER = OPENING.encode()
"""A body without these bytes holds no reference."""

TEXT_FIELDS: Mapping[str, tuple[str, ...]] = {
    "/v1/chat/completions": ("messages",),
    "/v1/chat/completions/render": ("messages",),
    "/v1/responses": ("instructions", "input"),
    "/v1/responses/render": ("instructions", "input"),
    "/v1/messages": ("system", "messages"),
    "/v1/messages/render": ("system", "messages"),
    "/v1/messages/count_tokens": ("system", "messages"),
    "/tokenize": ("messages",),
}
"""Paths of the APIs that have messages, and where in their bodies text stands."""

_REFERENCE = re.compile(
    r"(?P<slashes>\\*){opening}(?:(?P<reference>(?:(?!{opening})[^\n])*?)\}}\}})?".format(
        opening=re.escape(OPENING)
    )
)
_TOOL_ROLES = ("tool", "function")


class Inliner:
    """Replaces the references of one request. resolve: a reference's text; raises ReferenceError_."""

    def __init__(self, resolve: Callable[[str], str]) -> None:
        self._resolve = resolve
        self._known: dict[str, str] = {}
        self._num_references = 0
        self._num_bytes = 0

    def body(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """A request's JSON with its references replaced; `path` is one of `TEXT_FIELDS`. Raises ReferenceError_."""
        return body | {
            field: self._content(body[field], of_messages=field in ("messages", "input"))
            for field in TEXT_FIELDS[path]
            if field in body
        }

    def _content(self, value: Any, of_messages: bool = False, lenient: bool = False) -> Any:
        """Text, or a list of messages, or of parts of one."""
        if isinstance(value, str):
            return self.text(value, lenient)
        if not isinstance(value, list):
            return value
        if of_messages:
            return [self._message(each) for each in value]
        return [self._part(each, lenient) for each in value]

    def _message(self, message: Any) -> Any:
        """A message of any API, or another item of a Responses request."""
        if not isinstance(message, dict) or message.get("role") == "assistant":
            return message
        if message.get("type") in ("function_call_output", "custom_tool_call_output"):
            return message | {"output": self._content(message.get("output"), lenient=True)}
        if "role" not in message or "content" not in message:
            return message
        lenient = message["role"] in _TOOL_ROLES
        return message | {"content": self._content(message["content"], lenient=lenient)}

    def _part(self, part: Any, lenient: bool) -> Any:
        if isinstance(part, str):
            return self.text(part, lenient)
        if not isinstance(part, dict):
            return part
        if part.get("type") == "tool_result":
            return part | {"content": self._content(part.get("content"), lenient=True)}
        if isinstance(part.get("text"), str):
            return part | {"text": self.text(part["text"], lenient)}
        return part

    def text(self, text: str, lenient: bool = False) -> str:
        """One text with its references replaced.

        lenient: what names nothing stays, and so do escapes
        """
        return _REFERENCE.sub(lambda match: self._replaced(match, lenient), text) if OPENING in text else text

    def _replaced(self, match: re.Match[str], lenient: bool) -> str:
        slashes = match["slashes"]
        if len(slashes) % 2:
            return match[0] if lenient else slashes[: len(slashes) // 2] + match[0][len(slashes) :]
        try:
            if match["reference"] is None:
                raise ReferenceError_(
                    f"{OPENING} is not closed by }}}} on its line; write \\{OPENING} for the text itself"
                )
            text = self._text_of(match["reference"])
        except ReferenceError_:
            if lenient:
                return match[0]
            raise
        return slashes[: len(slashes) // 2] + text

    def _text_of(self, reference: str) -> str:
        self._num_references += 1
        if self._num_references > MAX_ITEMS:
            raise ReferenceError_(f"more than {MAX_ITEMS} references in one request: {shown(reference)}")
        if reference not in self._known:
            self._known[reference] = self._resolve(reference)
        text = self._known[reference]
        self._num_bytes += len(text)
        if self._num_bytes > MAX_BYTES:
            raise ReferenceError_(
                f"references of one request name over {MAX_BYTES >> 20} MiB: {shown(reference)}"
            )
        return text
