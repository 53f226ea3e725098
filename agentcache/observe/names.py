"""What entries are called: only the warm worker knows, so those that somebody wants to see are asked of it.

request log ─ids without a name─▶ answer to the worker's report ─▶ worker ─names─▶ here
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, Final

KEPT: Final = 50_000
AT_ONCE: Final = 500
_ASK_AGAIN_S: Final = 20.0


class Names:
    """Entry ids to names: `{"path", "name", "line"}`, or `{"learned": words}`. The least used ones are forgotten."""

    def __init__(self) -> None:
        self._names: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._asked: OrderedDict[str, float] = OrderedDict()

    def of(self, entry: str) -> dict[str, Any]:
        """Its name; {} if nobody has told it."""
        name = self._names.get(entry)
        if name is None:
            return {}
        self._names.move_to_end(entry)
        return name

    def wanted(self, entries: Iterable[str]) -> list[str]:
        """Those without a name that have not just been asked for; they count as asked for now."""
        now = time.monotonic()
        wanted: list[str] = []
        for entry in entries:
            if entry not in self._names and now - self._asked.get(entry, float("-inf")) > _ASK_AGAIN_S:
                wanted.append(entry)
                self._asked[entry] = now
                if len(wanted) == AT_ONCE:
                    break
        while len(self._asked) > KEPT:
            self._asked.popitem(last=False)
        return wanted

    def add(self, names: Mapping[str, dict[str, Any]]) -> None:
        for entry, name in names.items():
            self._asked.pop(entry, None)
            self._names[entry] = name
            self._names.move_to_end(entry)
        while len(self._names) > KEPT:
            self._names.popitem(last=False)
