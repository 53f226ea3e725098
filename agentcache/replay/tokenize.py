"""Texts to token ids, fast: agents send the same lines again and again, so lines are encoded once.

A text may be cut between a letter or digit and a line end where the tokenizer never joins the two, as those of
the GPT-2 and GPT-4 families do. Whether this tokenizer is one of them is not taken on trust: every text that has
a multiple of CHECK_EVERY texts before it is encoded whole as well, and at the first difference all are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from agentcache.entry import Tokens, as_tokens
from agentcache.errors import ModelError

CHECK_EVERY = 32
_SEAM = re.compile(r"(?<=[A-Za-z0-9])(?=\n)")


class Encoded(NamedTuple):
    """ids: int32 [n]; starts: index of the character each token begins at, int64 [n], ascending"""

    ids: Tokens
    starts: npt.NDArray[np.int64]


class LineEncoder:
    """Encodes texts without special tokens around them (those written in the text are recognised)."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._pieces: dict[str, Encoded] = {}
        self.head: Tokens = as_tokens(tokenizer.encode("").ids)
        """What the tokenizer puts in front of a text that no chat template made: BOS, if anything."""
        self._cuts = True
        self._count = 0

    @classmethod
    def of_folder(cls, folder: Path) -> LineEncoder:
        """ModelError if the folder has no fast tokenizer."""
        try:
            tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:
            raise ModelError(f"{folder} has no fast tokenizer (tokenizer.json): {error}") from error
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return cls(tokenizer)

    def encode(self, texts: Sequence[str]) -> list[Encoded]:
        """One result a text. Equal to encoding each by itself."""
        if not self._cuts:
            return list(self._whole(texts))
        cut = [_SEAM.split(text) for text in texts]
        fresh = list(dict.fromkeys(piece for pieces in cut for piece in pieces if piece not in self._pieces))
        self._pieces.update(zip(fresh, self._whole(fresh), strict=True))
        results = [self._joined(pieces) for pieces in cut]
        chosen = [i for i in range(len(texts)) if (self._count + i) % CHECK_EVERY == 0]
        self._count += len(texts)
        for i, whole in zip(chosen, self._whole([texts[i] for i in chosen]), strict=True):
            if not np.array_equal(results[i].ids, whole.ids):
                self._cuts = False
                return list(self._whole(texts))
        return results

    def _joined(self, pieces: list[str]) -> Encoded:
        parts = [self._pieces[piece] for piece in pieces]
        begins = np.cumsum([0, *map(len, pieces[:-1])])
        starts = np.concatenate([part.starts for part in parts])
        starts += np.repeat(begins, [len(part.ids) for part in parts])
        return Encoded(np.concatenate([part.ids for part in parts]), starts)

    def _whole(self, texts: Sequence[str]) -> Iterator[Encoded]:
        for encoding in self._tokenizer.encode_batch(list(texts), add_special_tokens=False):
            starts = np.array([start for start, _ in encoding.offsets], np.int64)
            yield Encoded(as_tokens(encoding.ids), starts)
