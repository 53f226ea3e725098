"""What one request asks of agentcache, read from its `kv_transfer_params`.

    {"agentcache": {"mode": "fast" | "exact", "strategy": NAME, "boundary_tokens": N, "budget": SHARE}}
    {"agentcache": {"store": {"cuts": [0, 120, 431], "domain": "index"}}}          the warm worker's
    {"agentcache": {"mode": "exact", "quiet": true}}                               the drift watch's

`cuts` are token offsets in the prompt, ascending: every interval between two of them becomes one entry, behind all
tokens before it. Entries live in domains: `index` is the repositories' and every request sees it; `own`, the
default, is seen by requests with the same `cache_salt` (or the same lack of one) and by no others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from agentcache.entry import INDEX_DOMAIN, own_domain
from agentcache.plan import RecomputePolicy
from agentcache.settings import POLICY_NAMES, EngineSettings, Mode

PARAM = "agentcache"
_OURS = "agentcache:"
EXACT_SALT = f"{_OURS}exact:"
"""Prefix of the page namespace in which no page is ever blended."""
FAST_SALT = f"{_OURS}fast:"
"""Of those who name a salt that begins like ours: else they could put blended pages into an exact namespace."""


class BadRequest(Exception):
    """The request's agentcache parameters make no sense; it is answered as `exact` and the reason is counted."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a request wants.

    salt: the user's `cache_salt`, "" if none
    policy: what is recomputed if it is blended
    cuts, store_domain: entries to make of it and where; no cuts: none
    quiet: nobody's: it waits for agents, is not counted, noted or remembered
    explicit: it named agentcache in its parameters, so its counters are sent back
    """

    mode: Mode
    salt: str
    policy: RecomputePolicy
    cuts: tuple[int, ...] = ()
    store_domain: str = INDEX_DOMAIN
    quiet: bool = False
    explicit: bool = False

    @property
    def background(self) -> bool:
        """Whether nobody waits for it: it begins when nobody else does."""
        return self.quiet or bool(self.cuts)

    @property
    def page_namespace(self) -> str:
        """Requests with an equal one share pages in vLLM's prefix cache."""
        return self.salt if self.page_salt is None else self.page_salt

    @property
    def domains(self) -> tuple[str, ...]:
        """Domains whose entries it may see, the preferred one first."""
        return (own_domain(self.salt), INDEX_DOMAIN)

    @property
    def page_salt(self) -> str | None:
        """The salt of the request's page namespace in vLLM's prefix cache; None leaves it as it is."""
        if self.mode != "fast":
            return EXACT_SALT + self.salt
        return FAST_SALT + self.salt if self.salt.startswith(_OURS) else None


def read_wish(params: Mapping[str, Any] | None, salt: str | None, settings: EngineSettings) -> Wish:
    """The wish of a request. Raises BadRequest."""
    given = (params or {}).get(PARAM)
    policy = settings.policy
    if given is None:
        return Wish(settings.mode, salt or "", policy)
    if not isinstance(given, Mapping):
        raise BadRequest("agentcache parameters must be an object")
    unknown = set(given) - {"mode", "store", "quiet", *POLICY_NAMES}
    if unknown:
        raise BadRequest(f"unknown agentcache parameter {min(unknown)!r}")
    mode = given.get("mode", settings.mode)
    if mode not in ("fast", "exact"):
        raise BadRequest("mode must be 'fast' or 'exact'")
    cuts = _cuts(given["store"]) if "store" in given else ()
    domain = _domain(given["store"], salt or "") if cuts else INDEX_DOMAIN
    try:
        policy = replace(policy, **{name: given[name] for name in POLICY_NAMES if name in given})
    except (TypeError, ValueError) as error:
        raise BadRequest(str(error)) from error
    quiet = given.get("quiet", False)
    if not isinstance(quiet, bool):
        raise BadRequest("quiet must be true or false")
    return Wish("exact" if cuts else mode, salt or "", policy, cuts, domain, quiet, explicit=True)


def _cuts(store: Any) -> tuple[int, ...]:
    cuts = store.get("cuts") if isinstance(store, Mapping) else None
    if (
        not isinstance(cuts, list | tuple)
        or len(cuts) < 2
        or not all(type(cut) is int for cut in cuts)
        or cuts[0] < 0
        or any(b <= a for a, b in pairwise(cuts))
    ):
        raise BadRequest("store.cuts must be at least two ascending token offsets")
    return tuple(cuts)


def _domain(store: Mapping[str, Any], salt: str) -> str:
    name = store.get("domain", "own")
    if name not in ("own", "index"):
        raise BadRequest("store.domain must be 'own' or 'index'")
    return INDEX_DOMAIN if name == "index" else own_domain(salt)
