"""The bytes of an entry file: a safetensors file that any reader opens.

    [0, 8)              length of the JSON header, little endian
    [8, start)          JSON header, padded with spaces so that `start` is a multiple of 4096
    [start, start+k)    what the codec made of the K/V; "raw": "kv" [parts, layers, tokens, heads, head_dim]
    [start+k, end)      "tokens"  int32 [tokens]

Two checksums (xxh3_128) stand in the header's metadata: `checksum` covers the K/V, `head` covers the header
(with its own digits zeroed) and "tokens". So a catalog can be rebuilt, trusting every field, without
reading the K/V; and no bit of the file is uncovered. The header's tensors follow from codec, layout and number
of tokens; a header that says otherwise is damaged.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from xxhash import xxh3_128

from agentcache.entry import EntryInfo, Tokens, entry_id
from agentcache.store.codecs import CODECS, RAW, Codec, Part, num_bytes
from agentcache.store.errors import EntryCorrupt
from agentcache.store.layout import DTYPES, EntryLayout

PAGE = 4096
VERSION = "2"  # 2: the codec is named
_ZEROS = b"0" * 32
_MAX_HEADER = 1 << 20
_NAMES = {dtype: name for name, dtype in DTYPES.items()} | {
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.float8_e4m3fn: "F8_E4M3",
}


class UnknownFormat(Exception):
    """A well-formed file of another format version or codec: not ours to serve, nor to delete."""


@dataclass(frozen=True, slots=True)
class Head:
    """What the header of an entry file says, before and after `tokens` were read.

    start: offset of the K/V in the file; num_tokens: shape; checksum: of the K/V, 32 hex digits
    """

    model: str
    layout: EntryLayout
    codec: Codec
    num_tokens: int
    start: int
    checksum: str
    head_checksum: str
    zeroed: bytes
    meta: dict[str, str]

    @property
    def kv_bytes(self) -> int:
        return num_bytes(self.codec, self.layout, self.num_tokens)

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

    def decode(self, body: torch.Tensor) -> torch.Tensor:
        """The K/V in `body`, uint8 [kv_bytes], once it agrees with the checksum. May share its memory."""
        if xxh3_128(buffer_of(body)).hexdigest() != self.checksum:
            raise EntryCorrupt(f"the K/V of entry {self.meta['id'][:12]} changed since it was written")
        return self.trust(body)

    def trust(self, body: torch.Tensor) -> torch.Tensor:
        """As `decode`, without looking at the checksum: for memory that nobody writes to."""
        parts = self.codec.parts(self.layout, self.num_tokens)
        pieces = body.split([part.nbytes for part in parts])  # type: ignore[no-untyped-call]
        tensors = [piece.view(part.dtype).view(part.shape) for piece, part in zip(pieces, parts, strict=True)]
        return self.codec.decode(self.layout, tensors)


def buffer_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, without a copy."""
    return memoryview(tensor.view(torch.uint8).numpy()).cast("B")  # type: ignore[arg-type]


def encode(
    model: str, layout: EntryLayout, info: EntryInfo, kv: torch.Tensor, codec: Codec = RAW
) -> list[memoryview]:
    """The file as buffers to write one after the other: header, K/V (raw: not copied), tokens."""
    body = [buffer_of(tensor) for tensor in codec.encode(kv)]
    tokens = info.tokens.astype("<i4").tobytes()
    checksum = xxh3_128()
    for buffer in body:
        checksum.update(buffer)
    metadata = {
        "format": "agentcache-entry",
        "version": VERSION,
        "codec": codec.name,
        "model": model,
        "layout": layout.to_json(),
        "id": info.id,
        "salt": info.salt,
        "context": info.context,
        "parent": info.parent,
        "position": str(info.position),
        "checksum": checksum.hexdigest(),
        "head": _ZEROS.decode(),
    }
    header = {"__metadata__": metadata} | _tensors(codec, layout, info.num_tokens)
    text = json.dumps(header, separators=(",", ":")).encode()
    length = -(-(8 + len(text)) // PAGE) * PAGE - 8
    raw = length.to_bytes(8, "little") + text.ljust(length)
    head = xxh3_128(raw + tokens).hexdigest().encode()
    return [memoryview(_with_head(raw, head)), *body, memoryview(tokens)]


def _tensors(codec: Codec, layout: EntryLayout, num_tokens: int) -> dict[str, Any]:
    """What the header says of the file's tensors."""
    tensors: dict[str, Any] = {}
    at = 0
    for name, dtype, shape in [
        *codec.parts(layout, num_tokens),
        Part("tokens", torch.int32, (num_tokens,)),
    ]:
        size = Part(name, dtype, shape).nbytes
        tensors[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    return tensors


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
        if meta["version"] != VERSION or meta["codec"] not in CODECS:
            raise UnknownFormat(f"version {meta['version']}, codec {meta['codec']}")
        codec, layout = CODECS[meta["codec"]], EntryLayout.from_json(meta["layout"])
        (num_tokens,) = header["tokens"]["shape"]
        if num_tokens < 1:
            raise EntryCorrupt("an entry file holds no tokens")
        if {name: of for name, of in header.items() if name != "__metadata__"} != _tensors(
            codec, layout, num_tokens
        ):
            raise EntryCorrupt("the tensors of an entry file are not those of its codec")
        head = Head(
            model=meta["model"],
            layout=layout,
            codec=codec,
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
