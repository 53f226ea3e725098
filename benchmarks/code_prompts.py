"""Prompts of real code for the benchmarks: installed packages, cut into blocks by the indexer, in three kinds.

    files      whole files in random order
    functions  single functions of several files in random order
    edited     whole files, one block of one of which was edited since its K/V was computed

Each ends with a question and the beginning of a definition; the rest of that definition is the true continuation.
"""

from __future__ import annotations

import importlib.util
import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from agentcache.context import Stream, Streams
from agentcache.entry import Tokens, as_tokens
from agentcache.indexer import Block, Index

PACKAGES = ("click", "httpx", "starlette", "fastapi", "rich", "aiohttp", "typer", "uvicorn")
KINDS = ("files", "functions", "edited")
_FUNCTIONS = ("function", "method", "class")
_HEAD = (
    "<|im_start|>system\nYou are a coding assistant. Answer from the code you are given.<|im_end|>\n"
    "<|im_start|>user\nPlease look at the following code and then do the task at the end.\n\n"
)
CONTINUED = 128


@dataclass(frozen=True, slots=True)
class File:
    """One file of a package. blocks: as the indexer cuts it; tokens: of its text."""

    package: str
    path: str
    data: bytes
    blocks: tuple[Block, ...]
    tokens: int

    def text(self, block: Block | None = None) -> str:
        raw = self.data if block is None else self.data[block.start_byte : block.end_byte]
        return raw.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Case:
    """One prompt.

    tokens: prompt and true continuation, int32; num_prompt: tokens before the continuation
    streams: what the warm worker computes for the code in it: files front to back, functions by themselves
    apart: the same code as a cache without context has it: every block by itself
    """

    kind: str
    tokens: Tokens
    num_prompt: int
    streams: tuple[Stream, ...]
    apart: tuple[Stream, ...]


class Corpus:
    """Files of installed packages, of a size that several fit a prompt."""

    def __init__(self, tokenizer: Tokenizer, streams: Streams, max_file_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._streams = streams
        self.files: list[File] = []
        self.packages: set[str] = set()
        for package in PACKAGES:
            spec = importlib.util.find_spec(package)
            if spec is None or spec.origin is None:
                continue
            found = list(self._read(package, Path(spec.origin).parent, max_file_tokens))
            self.files += found
            self.packages.update({package} if found else ())

    def _read(self, package: str, folder: Path, max_file_tokens: int) -> Iterator[File]:
        with tempfile.TemporaryDirectory() as scratch:
            index = Index.open(folder, Path(scratch) / "index.db")
            index.update()
            for record in sorted(index.files(), key=lambda record: record.path):
                if not record.path.endswith(".py") or not 1_000 < record.size < 40_000:
                    continue
                data, blocks = index.snapshot(record.path)
                tokens = self._streams.count(data.decode(errors="replace"))
                if 300 <= tokens <= max_file_tokens and len(blocks) >= 4:
                    yield File(package, record.path, data, tuple(blocks), tokens)
            index.close()

    def cases(self, kind: str, count: int, prompt_tokens: int, seed: int = 0) -> list[Case]:
        """`count` different prompts of about `prompt_tokens`, from all packages in turn."""
        rng = random.Random(f"{kind} {seed}")
        packages = sorted(self.packages)
        made: list[Case] = []
        for attempt in range(60 * count):
            if len(made) == count:
                break
            own = [file for file in self.files if file.package == packages[attempt % len(packages)]]
            case = self._case(kind, own, prompt_tokens, rng)
            if case is not None:
                made.append(case)
        return made

    def _case(self, kind: str, files: Sequence[File], prompt_tokens: int, rng: random.Random) -> Case | None:
        target = rng.choice(files)
        functions = [block for block in target.blocks if block.kind in ("function", "method")]
        if not functions:
            return None
        wanted = rng.choice(functions)
        lines = target.text(wanted).splitlines(keepends=True)
        rest = self._encode("".join(lines[2:]))[:CONTINUED]
        if len(rest) < 40:
            return None
        # Elsewhere the definition would only have to be copied.
        opening = "".join(lines[:4])
        others = [file for file in files if file is not target and opening not in file.text()]
        shown = self._shown(kind, others, prompt_tokens, rng)
        if shown is None:
            return None
        pieces, used, alone = shown
        body = "".join(f"{title}\n```python\n{text}```\n\n" for title, text in pieces)
        question = f"Task: using the code above, continue this definition from {target.path}:\n\n{''.join(lines[:2])}"
        prompt = self._encode(_HEAD + body + question)
        streams = [stream for file in used for stream in self._streams.of_file(file.data, file.blocks)]
        single = [self._streams.alone(file.data, block) for file in used for block in file.blocks]
        by_itself = [self._streams.alone(file.data, block) for file, block in alone]
        return Case(
            kind,
            as_tokens(prompt + rest),
            len(prompt),
            (*streams, *(one for one in by_itself if one is not None)),
            tuple(one for one in single if one is not None),
        )

    def _shown(
        self, kind: str, files: Sequence[File], budget: int, rng: random.Random
    ) -> tuple[list[tuple[str, str]], list[File], list[tuple[File, Block]]] | None:
        """Titles and texts in order; the files they come of; the blocks that are also stored by themselves."""
        order = rng.sample(files, len(files))
        if kind == "functions":
            return self._functions(order, budget, rng)
        used: list[File] = []
        for file in order:
            if len(used) < 5 and sum(one.tokens for one in used) + file.tokens <= budget:
                used.append(file)
        if len(used) < 3 or sum(one.tokens for one in used) < 0.6 * budget:
            return None
        pieces = [(file.path, file.text()) for file in used]
        if kind == "edited":
            place = rng.randrange(len(used))
            edited = _edit(used[place], rng)
            if edited is None:
                return None
            pieces[place] = (used[place].path, edited)
        return pieces, used, []

    def _functions(
        self, order: Sequence[File], budget: int, rng: random.Random
    ) -> tuple[list[tuple[str, str]], list[File], list[tuple[File, Block]]] | None:
        chosen: list[tuple[File, Block]] = []
        total = 0
        for file in order[:8]:
            own = [block for block in file.blocks if block.kind in _FUNCTIONS]
            for block in rng.sample(own, min(2, len(own))):
                size = len(self._encode(file.text(block)))
                if 60 <= size <= 900 and total + size <= budget:
                    chosen.append((file, block))
                    total += size
        if len(chosen) < 4 or total < 0.6 * budget:
            return None
        rng.shuffle(chosen)
        pieces = [(f"{file.path}#{block.name}", file.text(block)) for file, block in chosen]
        used = list({file.path: file for file, _ in chosen}.values())
        return pieces, used, chosen

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def _edit(file: File, rng: random.Random) -> str | None:
    """The file with one function changed: a line gone, one added, one name renamed, as a small commit does."""
    functions = [block for block in file.blocks if block.kind in ("function", "method")]
    candidates = [block for block in functions if file.text(block).count("\n") >= 8]
    if not candidates:
        return None
    block = rng.choice(candidates)
    lines = file.text(block).splitlines(keepends=True)
    at = rng.randrange(3, len(lines) - 2)
    indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())] or "    "
    changed = [*lines[:at], f"{indent}logger.debug('checked %r', self)\n", *lines[at + 1 :]]
    text = "".join(changed).replace("self.", "this.", 2)
    head, tail = file.data[: block.start_byte], file.data[block.end_byte :]
    return head.decode(errors="replace") + text + tail.decode(errors="replace")
