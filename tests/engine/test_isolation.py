"""A request with a `cache_salt` sees its own entries and pages and the index, nothing else; and nobody sees its own."""

from __future__ import annotations

import pytest

from agentcache.entry import INDEX_DOMAIN, as_tokens, entries_of_stream, own_domain
from tests.engine.serving import SERVED, Server, largest_difference

pytestmark = pytest.mark.engine


def code(server: Server, name: str) -> list[int]:
    lines = "".join(f"    {name}_{i} = {i} * argument\n" for i in range(30))
    return server.encode(f"def {name}(argument):\n{lines}")


def reused(server: Server, prompt: list[int], salt: str | None) -> int:
    """Tokens of entries; asked once a prompt and salt, so that no page is hit."""
    counters = server.ask(prompt, salt=salt, mode="fast").counters
    assert counters["prefix_hit_tokens"] == 0
    return int(counters["reused_tokens"])


@pytest.mark.parametrize("owner", ["alice", ""])
def test_entries_are_their_owners(server: Server, texts: dict[str, list[int]], owner: str) -> None:
    own = code(server, f"private_{owner or 'nobody'}")
    server.client.precompute(SERVED, own, [0, len(own)], domain="own", salt=owner)
    server.flush()
    prompt = texts["system"][:-1] + own + texts["question"]
    seen = {salt: reused(server, prompt, salt or None) for salt in ("alice", "bob", "")}
    assert seen.pop(owner) > 200, "whoever made them has them"
    assert set(seen.values()) == {0}


def test_the_index_is_everybodys(server: Server, texts: dict[str, list[int]]) -> None:
    own = code(server, "public")
    server.store(own)
    prompt = texts["system"][:-2] + own + texts["question"]
    assert min(reused(server, prompt, salt) for salt in ("alice", "bob", None)) > 200


def test_an_entry_of_a_domain_is_not_named_by_another(server: Server) -> None:
    """Whether somebody else's entry exists cannot be asked by those who do not know the salt: it is part of the id."""
    tokens, model = as_tokens(code(server, "named")), server.status()["fingerprint"]
    ids = {
        entries_of_stream(model, domain, tokens, [0, len(tokens)])[0].id
        for domain in (INDEX_DOMAIN, own_domain(""), own_domain("alice"), own_domain("bob"))
    }
    assert len(ids) == 4


def test_pages_are_their_owners(server: Server, texts: dict[str, list[int]]) -> None:
    prompt = texts["system"][:-3] + texts["shlex"] + texts["question"]
    hits = [
        server.ask(prompt, salt=salt, mode=mode).counters["prefix_hit_tokens"]
        for mode in ("fast", "exact")
        for salt in ("carol", "carol", "dave")
    ]
    assert hits[1] > 400
    assert hits[4] > 400
    assert (hits[0], hits[2], hits[3], hits[5]) == (0, 0, 0, 0)


def test_no_salt_puts_blended_pages_where_exact_ones_are(server: Server, texts: dict[str, list[int]]) -> None:
    prompt = texts["system"][:-4] + texts["shlex"] + texts["question"]
    blended = server.ask(prompt, salt="agentcache:exact:erin", mode="fast", strategy="none")
    assert blended.counters["reused_tokens"] > 400
    exact = server.ask(prompt, salt="erin", mode="exact")
    assert exact.counters["prefix_hit_tokens"] == 0
    assert largest_difference(blended.first, exact.first) > 1e-3
