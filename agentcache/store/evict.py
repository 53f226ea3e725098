"""Making room on disk: files go before rows, inside one transaction, so that the budget always holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from agentcache.store.catalog import Catalog, Victim
from agentcache.store.policy import SAMPLE, EvictionPolicy
from agentcache.store.root import Root


def make_room(
    root: Root,
    catalog: Catalog,
    policy: EvictionPolicy,
    budget_bytes: int,
    size_bytes: int,
    now: float,
    gone: list[Victim],
    spare: Callable[[Path], bool],
) -> bool:
    """Evict until `size_bytes` more fit the budget; False if that is impossible. `gone` gets what went.

    now: of the store's clock; spare: deletes a file; False if it must stay for now

    Call inside a transaction. A process killed between unlink and commit leaves rows without files: reads
    and the next opening drop those.
    """
    sample: list[Victim] = []
    passed = 0
    used = catalog.bytes_used()
    while used + size_bytes > budget_bytes:
        if not sample:
            sample = catalog.victims(SAMPLE, skip=passed)
            if not sample:
                return False
        victim = min(sample, key=lambda v: policy.worth(v.candidate, now))
        sample.remove(victim)
        if not spare(root.entry_path(victim.model, victim.salt, victim.candidate.id)):
            passed += 1
            continue
        gone.append(victim)
        catalog.delete([victim.key])
        used -= victim.candidate.size_bytes
    return True


def unlinked(path: Path) -> bool:
    """Delete a file that may be gone already: True."""
    path.unlink(missing_ok=True)
    return True
