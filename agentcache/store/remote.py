"""A remote tier: entry files as objects, the same bytes as on disk, so that what one machine computed another reads.

    <model>/<salt>/<id>         the entry file
    <model>/infos/<salt>.<id>   its header and tokens alone, for those who look what there is; written last

Never waited for longer than its time-out, and left alone for a while after each failure (`bench.py`). Nothing is
believed: every object is verified like a file on disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from threading import Lock

import torch

from agentcache.entry import EntryInfo
from agentcache.store.bench import Bench, Rate
from agentcache.store.buckets import Bucket, BucketError
from agentcache.store.codecs import Codec, num_bytes
from agentcache.store.errors import EntryCorrupt, EntryMissing, WriteRefused
from agentcache.store.format import (
    PAGE,
    Head,
    UnknownFormat,
    decode_head,
    decode_tokens,
    encode,
    header_bytes,
)
from agentcache.store.layout import EntryLayout
from agentcache.store.root import model_folder, salt_folder
from agentcache.store.stats import Counts, TierStats

_LOOK_S = 10.0
"""Between two looks at what others have added."""


class RemoteTier:
    """Entries of one model in a bucket. Implements `tier.Tier`; faults are counted in `errors` by reason.

    `missing` answers from what this process knows: what it wrote, and what `infos` found when it looked last.
    """

    name = "remote"

    def __init__(
        self,
        bucket: Bucket,
        model: str,
        layout: EntryLayout,
        codec: Codec,
        errors: Counts,
        on_add: Callable[[list[EntryInfo]], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bucket, self._model, self._layout, self._codec = bucket, model, layout, codec
        self._errors, self._on_add, self._clock = errors, on_add, clock
        self._counts = Counts()
        self._lock = Lock()  # guards the next three
        self._salts: dict[str, str] = {}
        self._sizes: dict[str, int] = {}
        self._bytes = 0
        self._next_look = 0.0
        self.bench, self.rate = Bench(clock), Rate(latency_s=0.02, bytes_per_s=100e6)

    def infos(self) -> Iterator[EntryInfo]:
        """Looks at the bucket: entries that were not known to this process. Ends early where it fails."""
        prefix = f"{model_folder(self._model)}/infos/"
        try:
            for key in self._bucket.keys(prefix):
                id = key.rpartition(".")[2]
                if not self.missing([id]):
                    continue
                raw = self._bucket.get(key)
                if raw is not None:
                    try:
                        head, info = _parse_info(raw)
                        self._check(head, info, id)
                    except (EntryCorrupt, UnknownFormat):
                        self._errors.add("remote_lied")
                    else:
                        self._note(info, head.file_bytes)
                        yield info
            self.bench.worked()
        except BucketError as error:
            self._fault(error)

    def read(self, id: str) -> tuple[EntryInfo, torch.Tensor]:
        with self._lock:
            salt = self._salts.get(id)
        if salt is None or self.bench.out:
            self._counts.add("misses")
            raise EntryMissing(
                f"entry {id[:12]} is not in the remote tier" + (" now" if salt is not None else "")
            )
        began = self._clock()
        try:
            raw = self._bucket.get(self._key(salt, id))
        except BucketError as error:
            self._fault(error)
            self._counts.add("misses")
            raise EntryMissing(f"entry {id[:12]} cannot be fetched ({error.reason})") from error
        if raw is None:
            self._forget(id)
            self._counts.add("misses")
            raise EntryMissing(f"entry {id[:12]} is not in the remote tier any more")
        self.rate.measured(len(raw), self._clock() - began)
        try:
            head, info = _parse_info(raw)
            self._check(head, info, id)
            if len(raw) != head.file_bytes:
                raise EntryCorrupt(f"an object has {len(raw)} bytes instead of {head.file_bytes}")
            body = torch.frombuffer(
                bytearray(raw[head.start : head.start + head.kv_bytes]), dtype=torch.uint8
            )
            kv = head.decode(body)
        except (EntryCorrupt, UnknownFormat) as error:
            self._forget(id)
            self._errors.add("remote_lied")
            self._counts.add("misses")
            raise EntryCorrupt(f"entry {id[:12]} came damaged: {error}") from error
        self.bench.worked()
        self._counts.add("hits")
        return info, kv

    def write(self, info: EntryInfo, kv: torch.Tensor) -> list[str]:
        if not self.missing([info.id]):
            return []
        if self.bench.out:
            raise WriteRefused("remote_benched")
        buffers = encode(self._model, self._layout, info, kv, self._codec)
        try:
            self._bucket.put(self._key(info.salt, info.id), buffers)
            self._bucket.put(self._info_key(info.salt, info.id), [buffers[0], buffers[-1]])
        except BucketError as error:
            self._fault(error)
            raise WriteRefused(error.reason) from error
        self.bench.worked()
        self._note(info, sum(map(len, buffers)))
        return []

    def missing(self, ids: Sequence[str]) -> list[str]:
        with self._lock:
            return [id for id in ids if id not in self._salts]

    def expected_s(self, num_tokens: int) -> float:
        """How long reading an entry of `num_tokens` will take; infinite while the tier is benched."""
        return self.fetch_s(num_bytes(self._codec, self._layout, num_tokens))

    def fetch_s(self, size: int) -> float:
        """How long reading `size` bytes will take; infinite while the tier is benched."""
        return float("inf") if self.bench.out else self.rate.expected_s(size)

    def sizes(self, ids: Sequence[str]) -> dict[str, int]:
        """Bytes of the objects of those `ids` that are here."""
        with self._lock:
            return {id: self._sizes[id] for id in ids if id in self._sizes}

    def remove(self, id: str) -> bool:
        with self._lock:
            salt = self._salts.get(id)
        if salt is None:
            return False
        self._forget(id)
        try:
            self._bucket.delete([self._info_key(salt, id), self._key(salt, id)])
        except BucketError as error:
            self._fault(error)
        return True

    def tick(self) -> None:
        """Look what others have added, every ten seconds, and tell."""
        if self._clock() >= self._next_look and not self.bench.out:
            news = list(self.infos())
            self._next_look = self._clock() + _LOOK_S
            if news and self._on_add is not None:
                self._on_add(news)

    def stats(self) -> TierStats:
        counts = self._counts
        with self._lock:
            return TierStats(len(self._salts), self._bytes, 0, counts["hits"], counts["misses"], 0)

    def close(self) -> None:
        """Nothing is held."""

    def _check(self, head: Head, info: EntryInfo, id: str) -> None:
        if (info.id, head.model, head.layout) != (id, self._model, self._layout):
            raise EntryCorrupt("an object holds another entry than its name says")

    def _note(self, info: EntryInfo, size: int) -> None:
        with self._lock:
            self._bytes += size - self._sizes.get(info.id, 0)
            self._salts[info.id], self._sizes[info.id] = info.salt, size

    def _forget(self, id: str) -> None:
        with self._lock:
            self._salts.pop(id, None)
            self._bytes -= self._sizes.pop(id, 0)

    def _fault(self, error: BucketError) -> None:
        self.bench.failed()
        self._errors.add(error.reason)

    def _key(self, salt: str, id: str) -> str:
        return f"{model_folder(self._model)}/{salt_folder(salt)}/{id}"

    def _info_key(self, salt: str, id: str) -> str:
        return f"{model_folder(self._model)}/infos/{salt_folder(salt)}.{id}"


def _parse_info(raw: memoryview) -> tuple[Head, EntryInfo]:
    """From an entry file, or from its header and tokens alone."""
    length = header_bytes(bytes(raw[:PAGE]))
    head = decode_head(bytes(raw[:length]))
    return head, head.info(decode_tokens(bytes(raw[-4 * head.num_tokens :])))
