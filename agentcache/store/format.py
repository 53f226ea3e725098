"""The bytes of an entry file: a safetensors file that any reader opens.

    [0, 8)              length of the JSON header, little endian
    [8, start)          JSON header, padded with spaces so that `start` is a multiple of 4096
    [start, start+k)    "kv"      [parts, layers, tokens, heads, head_dim]
    [start+k, end)      "tokens"  int32 [tokens]

Two checksums (xxh3_128) stand in the header's metadata: `checksum` covers "kv", `head` covers the header
(with its own digits zeroed) and "tokens". So a catalog can be rebuilt, trusting every field, without
reading the K/V; and no bit of the file is uncovered.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from xxhash import xxh3_128

from agentcache.entry import EntryInfo, Tokens, entry_id
from agentcache.store.errors import EntryCorrupt
from agentcache.store.layout import DTYPES, EntryLayout

PAGE = 4096
VERSION = "1"
CODEC = "raw"
_ZEROS = b"0" * 32
_MAX_HEADER = 1 << 20


class UnknownFormat(Exception):
    """A well-formed file of another format version or codec: not ours to serve, nor to delete."""


@dataclass(frozen=True, slots=True)
class Head:
    """What the header of an entry file says, before and after `tokens` were read.

    start: offset of the K/V in the file; num_tokens: shape; checksum: of the K/V, 32 hex digits
    """

    model: str
    layout: EntryLayout
    num_tokens: int
    start: int
    checksum: str
    head_checksum: str
    zeroed: bytes
    meta: dict[str, str]

    @property
    def kv_bytes(self) -> int:
        return self.layout.token_bytes * self.num_tokens

    @property
    def file_bytes(self) -> int:
        return self.start + self.kv_bytes + 4 * self.num_tokens

    def info(self, tokens: Tokens) -> EntryInfo:
        """The entry described, once the file's `tokens` agree with the checksum and the content address."""
        if xxh3_128(self.zeroed + tokens.tobytes()).hexdigest() != self.head_checksum:
            raise EntryCorrupt("the header or the tokens of an entry file changed since it was written")
        meta = self.meta
        if entry_id(self.model, meta["salt"], meta["context"], tokens) != meta["id"]:
            raise EntryCorrupt("an entry file does not hold the tokens its id names")
        return EntryInfo(
            meta["id"], meta["salt"], meta["context"], meta["parent"], int(meta["position"]), tokens
        )


def kv_buffer(kv: torch.Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, without a copy."""
    return memoryview(kv.view(torch.uint8).numpy()).cast("B")  # type: ignore[arg-type]


def encode(model: str, layout: EntryLayout, info: EntryInfo, kv: torch.Tensor) -> list[memoryview]:
    """The file as buffers to write one after the other: header, K/V (not copied), tokens."""
    body = kv_buffer(kv)
    tokens = info.tokens.astype("<i4").tobytes()
    metadata = {
        "format": "agentcache-entry",
        "version": VERSION,
        "codec": CODEC,
        "model": model,
        "id": info.id,
        "salt": info.salt,
        "context": info.context,
        "parent": info.parent,
        "position": str(info.position),
        "checksum": xxh3_128(body).hexdigest(),
        "head": _ZEROS.decode(),
    }
    kv_bytes = len(body)
    header: dict[str, Any] = {
        "__metadata__": metadata,
        "kv": {
            "dtype": layout.dtype_name,
            "shape": layout.shape(info.num_tokens),
            "data_offsets": [0, kv_bytes],
        },
        "tokens": {
            "dtype": "I32",
            "shape": [info.num_tokens],
            "data_offsets": [kv_bytes, kv_bytes + len(tokens)],
        },
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    length = -(-(8 + len(text)) // PAGE) * PAGE - 8
    raw = length.to_bytes(8, "little") + text.ljust(length)
    head = xxh3_128(raw + tokens).hexdigest().encode()
    return [memoryview(_with_head(raw, head)), body, memoryview(tokens)]


def header_bytes(first: bytes) -> int:
    """Length of the whole header, the 8 bytes before it included, from a file's first 8 bytes or more."""
    length = int.from_bytes(first[:8], "little")
    if len(first) < 8 or not 2 <= length <= _MAX_HEADER:
        raise EntryCorrupt("an entry file has no header")
    return 8 + length


def decode_head(raw: bytes) -> Head:
    """Parse a whole header (`header_bytes` long). EntryCorrupt, or UnknownFormat for another version."""
    try:
        header = json.loads(raw[8:])
        meta = header["__metadata__"]
        if meta["format"] != "agentcache-entry":
            raise EntryCorrupt("a file in the store is not an entry")
        if (meta["version"], meta["codec"]) != (VERSION, CODEC):
            raise UnknownFormat(f"version {meta['version']}, codec {meta['codec']}")
        parts, layers, num_tokens, heads, head_dim = header["kv"]["shape"]
        layout = EntryLayout(parts, layers, heads, head_dim, DTYPES[header["kv"]["dtype"]])
        head = Head(
            model=meta["model"],
            layout=layout,
            num_tokens=num_tokens,
            start=len(raw),
            checksum=meta["checksum"],
            head_checksum=meta["head"],
            zeroed=_with_head(raw, _ZEROS),
            meta={key: meta[key] for key in ("id", "salt", "context", "parent", "position")},
        )
        int(meta["position"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise EntryCorrupt("the header of an entry file is damaged") from error
    if num_tokens < 1:
        raise EntryCorrupt("an entry file holds no tokens")
    return head


def decode_tokens(raw: bytes) -> Tokens:
    return np.frombuffer(raw, dtype="<i4").astype(np.int32)


def _with_head(raw: bytes, digits: bytes) -> bytes:
    """`raw` with the 32 digits of its own checksum replaced."""
    at = raw.find(b'"head":"')
    if at < 0 or len(digits) != len(_ZEROS):
        raise EntryCorrupt("an entry file has no header checksum")
    at += len(b'"head":"')
    return raw[:at] + digits + raw[at + len(_ZEROS) :]
