"""Making room on disk: files go before rows, inside one transaction, so that the budget always holds."""

from __future__ import annotations

from contextlib import suppress

from agentcache.store.catalog import Catalog, Victim
from agentcache.store.policy import SAMPLE, EvictionPolicy
from agentcache.store.root import Root


def make_room(
    root: Root,
    catalog: Catalog,
    policy: EvictionPolicy,
    budget_bytes: int,
    size_bytes: int,
    gone: list[Victim],
) -> bool:
    """Evict until `size_bytes` more fit the budget; False if that is impossible. `gone` gets what went.

    Call inside a transaction. A process killed between unlink and commit leaves rows without files: reads
    and the next opening drop those.
    """
    sample: list[Victim] = []
    used = catalog.bytes_used()
    while used + size_bytes > budget_bytes:
        if not sample:
            sample = catalog.victims(SAMPLE)
            if not sample:
                return False
        victim = min(sample, key=lambda v: policy.worth(v.candidate))
        sample.remove(victim)
        with suppress(FileNotFoundError):
            root.entry_path(victim.model, victim.salt, victim.candidate.id).unlink()
        gone.append(victim)
        catalog.delete([victim.key])
        used -= victim.candidate.size_bytes
    return True
