"""One row of the catalog: an entry's facts, with a checksum of their own."""

from __future__ import annotations

from typing import NamedTuple

from xxhash import xxh3_128

from agentcache.entry import EntryInfo
from agentcache.store.format import decode_tokens


class Row(NamedTuple):
    """One entry in service. `size`: bytes of its file; times in seconds since the epoch."""

    info: EntryInfo
    size: int
    created: float
    last_used: float
    uses: int


COLUMNS = "id, salt, context, parent, position, tokens, size, created, last_used, uses, checksum"


def encode_row(row: Row) -> tuple[object, ...]:
    """The values of `COLUMNS`."""
    info = row.info
    tokens = info.tokens.astype("<i4").tobytes()
    # int(): SQLite does not know numpy's integers
    fields = (info.id, info.salt, info.context, info.parent, int(info.position), tokens, row.size)
    return (*fields, row.created, row.last_used, row.uses, _row_checksum(fields))


def decode_row(found: tuple[object, ...]) -> Row | str:
    """From a key and the values of `COLUMNS`; the id alone of a row that is damaged."""
    _, *columns, created, last_used, uses, checksum = found
    fields = tuple(columns)
    if checksum != _row_checksum(fields):
        return str(fields[0])
    id, salt, context, parent, position, tokens, size = fields
    info = EntryInfo(id, salt, context, parent, position, decode_tokens(tokens))  # type: ignore[arg-type]
    return Row(info, size, created, last_used, uses)  # type: ignore[arg-type]


def _row_checksum(fields: tuple[object, ...]) -> bytes:
    *values, tokens, size = fields
    digest = xxh3_128(tokens if isinstance(tokens, bytes) else repr(tokens).encode())
    digest.update(repr((values, size)).encode())
    return digest.digest()
