"""How much text there is to keep warm: a repository's, counted, or a corpus', multiplied."""

from __future__ import annotations

from pathlib import Path

from agentcache.capacity.plan import Amount

TOKENS_PER_PAGE = 650
"""A page of 500 English words."""


def of_repository(where: list[str], tokenizer: Path, max_tokens: int) -> Amount:
    """Tokens of the repositories' entries with a model's tokenizer. UsageError for what is no repository."""
    from agentcache.context.streams import Streams
    from agentcache.replay.source import Source

    files: dict[str, int] = {}
    stored = 0
    with Source(where, Streams(str(tokenizer), max_tokens)) as source:
        seen: set[str] = set()
        for known in source.entries():
            if known.info.id in seen:
                continue
            seen.add(known.info.id)
            stored += known.info.num_tokens
            if not known.label.endswith(" alone"):
                file = known.label.rpartition("#")[0]
                files[file] = files.get(file, 0) + known.info.num_tokens
        what = f"{', '.join(where)}: {source.num_files} files"
    return Amount(what, sum(files.values()), stored, min(max_tokens, max(files.values(), default=1)))


def of_corpus(documents: int, pages: int, tokens_per_page: int) -> Amount:
    """Documents that are each computed front to back."""
    each = pages * tokens_per_page
    what = f"{documents:,} documents of {pages} pages of {tokens_per_page:,} tokens"
    return Amount(what, documents * each, documents * each, each)
