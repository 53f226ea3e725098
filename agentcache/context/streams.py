"""Token streams that are precomputed: a file front to back, or one block by itself."""

from __future__ import annotations

import json
import logging
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from agentcache.entry import Tokens, as_tokens
from agentcache.errors import ModelError
from agentcache.indexer import Block


@dataclass(frozen=True, slots=True)
class Stream:
    """Tokens computed front to back in one request.

    tokens: int32 [n]; cuts: ascending offsets, every interval one entry; blocks: ids of all blocks in it, those that
    lie in another block's last token included
    starts: offset where each of `blocks` begins; the last one's end is the last cut
    """

    tokens: Tokens
    cuts: tuple[int, ...]
    blocks: tuple[str, ...]
    starts: tuple[int, ...] = ()

    @property
    def covers(self) -> tuple[tuple[str, ...], ...]:
        """For each interval the blocks that begin in it; the last one has those without a token, too."""
        covers: list[list[str]] = [[] for _ in self.cuts[1:]]
        for block, start in zip(self.blocks, self.starts, strict=True):
            covers[min(bisect_right(self.cuts, start), len(covers)) - 1].append(block)
        return tuple(map(tuple, covers))


class Streams:
    """Turns files and blocks into streams with one model's tokenizer.

    model: local folder or hub id; max_tokens: longest stream the engine takes
    Raises ModelError when the model has no fast tokenizer.
    """

    def __init__(self, model: str, max_tokens: int) -> None:
        self._tokenizer = _load(model)
        self._max_tokens = max_tokens
        self._head: list[int] = self._tokenizer.encode(
            ""
        ).ids  # what the tokenizer puts in front (BOS), if anything

    @property
    def max_tokens(self) -> int:
        return self._max_tokens

    @property
    def head(self) -> tuple[int, ...]:
        """Ids that the tokenizer puts in front of every text (BOS), if any."""
        return tuple(self._head)

    def count(self, text: str) -> int:
        """Tokens of `text` by itself."""
        return len(self.encode(text))

    def encode(self, text: str) -> list[int]:
        """Token ids of `text` by itself."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids; marks that are no text, as a turn's end, are left out."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    def of_file(self, data: bytes, blocks: Sequence[Block]) -> list[Stream]:
        """A file front to back: one stream, or several windows cut at block boundaries if it is too long.

        A block that alone is longer than the engine takes is cut at the limit, its rest is left out.
        """
        if not blocks:
            return []
        pieces = [data[block.start_byte : block.end_byte].decode(errors="replace") for block in blocks]
        encoded = self._tokenizer.encode("".join(pieces), add_special_tokens=False)
        starts = np.array([start for start, _ in encoded.offsets], dtype=np.int64)
        bounds = np.cumsum([0, *map(len, pieces)])[:-1]
        cuts = [*np.searchsorted(starts, bounds).tolist(), len(starts)]
        ids = encoded.ids
        room = self._max_tokens - len(self._head)
        streams: list[Stream] = []
        first = 0
        while first < len(blocks):
            last = first + 1
            while last < len(blocks) and cuts[last + 1] - cuts[first] <= room:
                last += 1
            stop = min(cuts[last], cuts[first] + room)
            stream = self._stream(
                ids[cuts[first] : stop],
                [min(cut, stop) - cuts[first] for cut in cuts[first : last + 1]],
                [block.id for block in blocks[first:last]],
            )
            if stream is not None:
                streams.append(stream)
            first = last
        return streams

    def alone(self, data: bytes, block: Block) -> Stream | None:
        """One block by itself, as an agent that asks for just this block would show it."""
        text = data[block.start_byte : block.end_byte].decode(errors="replace")
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids[: self._max_tokens - len(self._head)]
        return self._stream(ids, [0, len(ids)], [block.id])

    def _stream(self, ids: list[int], cuts: list[int], block_ids: list[str]) -> Stream | None:
        """Put the head in front, and cut once where a block got no token of its own."""
        if not ids:
            return None
        shifted = [cut + len(self._head) for cut in cuts]
        starts = tuple(shifted[: len(block_ids)])
        return Stream(as_tokens(self._head + ids), tuple(dict.fromkeys(shifted)), tuple(block_ids), starts)


def _load(model: str) -> Tokenizer:
    folder = Path(model)
    try:
        if folder.is_dir():
            tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        else:
            # Not a line for each of its retries: the error says it once. Importing it sets a level of its own.
            from huggingface_hub.utils import logging as hub_logging

            hub_logging.set_verbosity(logging.CRITICAL)
            tokenizer = Tokenizer.from_pretrained(model)
    except Exception as error:
        raise ModelError(f"{model} has no fast tokenizer (tokenizer.json): {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def max_position(model: str) -> int | None:
    """Longest context the model's config allows, in tokens; None if it does not say."""
    config = Path(model) / "config.json"
    if not config.is_file():
        return None
    value = json.loads(config.read_text()).get("max_position_embeddings")
    return int(value) if value else None
