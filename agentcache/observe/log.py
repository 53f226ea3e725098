"""The latest requests, one record each: for `GET /agentcache/requests` and the page."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from agentcache.observe.difference import difference
from agentcache.observe.names import Names

KEPT: Final = 1000
KEPT_SPANS: Final = 50_000
"""Over all records, about 10 MB: where many requests have many spans, the oldest lose their places."""

Record = dict[str, Any]
Decode = Callable[[Sequence[int]], str]


class RequestLog:
    """Records as `RequestRecord.to_dict` makes them, the latest `KEPT`. Used on one thread.

    decode: token ids to text, set once there is a tokenizer. Of a prompt's text nothing is kept but the few characters
    in which it parted from an earlier one (`agentcache.observe.difference.SHOWN`).
    """

    def __init__(self) -> None:
        self.decode: Decode = lambda tokens: ""
        self._records: deque[Record] = deque()
        self._num_spans = 0
        self.num_added = 0

    def __len__(self) -> int:
        return len(self._records)

    def add(self, record: Record) -> None:
        """The record is the log's from now on; its `parting` becomes `broken`, in words."""
        record["broken"] = _in_words(record.pop("parting"), self.decode)
        self._records.append(record)
        self.num_added += 1
        self._num_spans += len(record["placed"])
        if len(self._records) > KEPT:
            self._num_spans -= len(self._records.popleft()["placed"])
        for old in self._records:
            if self._num_spans <= KEPT_SPANS:
                return
            self._num_spans -= len(old["placed"])
            old["placed"] = []

    def entries(self, limit: int) -> list[str]:
        """Ids of the entries that the latest `limit` requests reused, each once, the latest first."""
        latest = list(self._records)[-limit:]
        return list(dict.fromkeys(span[2] for record in reversed(latest) for span in record["placed"]))

    def latest(self, limit: int, names: Names) -> list[Record]:
        """The latest first, each span with its entry's name if it is known."""
        return [_told(record, names) for record in reversed(list(self._records)[-limit:])]


def _told(record: Record, names: Names) -> Record:
    told = {key: value for key, value in record.items() if key not in ("placed", "trace_headers")}
    told["reused"] = [
        {"start": start, "stop": stop, "recomputed": recomputed, "entry": entry, **names.of(entry)}
        for start, stop, entry, recomputed in record["placed"]
    ]
    return told


def _in_words(parting: Mapping[str, Any] | None, decode: Decode) -> dict[str, Any] | None:
    """parting: as `agentcache.observe.prompts.Parting` has it, with token ids"""
    if parting is None:
        return None
    before = decode(parting["before"])
    now = decode([*parting["before"], *parting["now"]])[len(before) :]
    was = decode([*parting["before"], *parting["was"]])[len(before) :]
    found = asdict(difference(before, now, was))
    return {"request_id": parting["other"], "at_token": parting["common"], **found}
