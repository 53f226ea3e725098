"""What the index knows about an entry's worth, told to the store: its eviction asks for uses and for this."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

_LEAST, _MOST = 0.5, 4.0
_AT_ONCE = 1000


class Weights:
    """Collects weights until `flush`.

    send: has the store told; False if it must not be, and then never is again
    """

    def __init__(self, send: Callable[[Mapping[str, float]], bool]) -> None:
        self._send = send
        self._news: dict[str, float] = {}
        self._allowed = True

    def stored(self, entries: Iterable[str], importance: float, num_files: int) -> None:
        """Entries of a file exist. importance: of `num_files` files, which add up to 1: an average file weighs 1."""
        weight = min(_MOST, max(_LEAST, importance * num_files))
        self._news.update(dict.fromkeys(entries, weight))

    def dead(self, entries: Iterable[str]) -> None:
        """No index refers to these any more."""
        self._news.update(dict.fromkeys(entries, 0.0))

    def flush(self) -> None:
        """Tell the store what is new."""
        while self._news and self._allowed:
            some = dict(list(self._news.items())[:_AT_ONCE])
            self._allowed = self._send(some)
            for entry in some:
                del self._news[entry]
        self._news.clear()
