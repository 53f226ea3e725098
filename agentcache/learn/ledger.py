"""Which learned entries exist, what each is worth, and that they stay within their budget.

One small SQLite file for each model, beside the store: token ids and counts, no K/V. It can be deleted at any time:
what it knew then stays in the store like any other entry, and what comes back is learned anew.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from agentcache import paths
from agentcache.entry import EntryInfo, as_tokens

_SCHEMA = """
CREATE TABLE IF NOT EXISTS learned (
    id TEXT PRIMARY KEY, salt TEXT, context TEXT, parent TEXT, position INTEGER, tokens BLOB,
    last_used REAL, uses INTEGER
) WITHOUT ROWID
"""


@dataclass(slots=True)
class _Held:
    info: EntryInfo
    last_used: float
    uses: int

    def worth(self, now: float) -> float:
        """Chance of a use soon, as the store's eviction reckons it; all tokens cost and take the same here."""
        return (self.uses + 1) / (1.0 + max(0.0, now - self.last_used))


class Ledger:
    """An account of learned entries. It decides what goes; whoever uses it has the engine delete that.

    budget_bytes: most bytes of K/V that are held; token_bytes: what a token's take, before any codec
    clock: seconds since the epoch
    """

    def __init__(
        self, path: Path, budget_bytes: int, token_bytes: int, clock: Callable[[], float] = time.time
    ) -> None:
        self.budget_bytes, self.token_bytes = budget_bytes, max(1, token_bytes)
        self.num_tokens = self.num_evicted = 0
        self._clock = clock
        self._held: dict[str, _Held] = {}
        self._connection = _open(path)
        for id, salt, context, parent, position, tokens, last_used, uses in self._connection.execute(
            "SELECT * FROM learned"
        ):
            info = EntryInfo(id, salt, context, parent, position, as_tokens(np.frombuffer(tokens, np.int32)))
            self._held[id] = _Held(info, last_used, uses)
            self.num_tokens += info.num_tokens

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, id: str) -> bool:
        return id in self._held

    @property
    def num_bytes(self) -> int:
        return self.num_tokens * self.token_bytes

    def infos(self) -> Iterator[EntryInfo]:
        """All that are held."""
        return iter([held.info for held in self._held.values()])

    def fits(self, num_tokens: int) -> bool:
        """Whether so many tokens could be held if everything else went."""
        return num_tokens * self.token_bytes <= self.budget_bytes

    def hold(self, infos: Sequence[EntryInfo], spared: Collection[str] = ()) -> list[str] | None:
        """Take entries into the account; ids of those that must go for them, the least worth first.

        Never one of `infos` or `spared`. None, and nothing is changed, if that does not make enough room.
        """
        kept = {*spared, *(info.id for info in infos)}
        fresh = [info for info in infos if info.id not in self._held]
        now = self._clock()
        over = self.num_bytes + sum(i.num_tokens for i in fresh) * self.token_bytes - self.budget_bytes
        victims = self._least_worth(over, kept, now)
        if victims is None:
            return None
        self.forget(victims)
        self.num_evicted += len(victims)
        for info in fresh:
            self._held[info.id] = _Held(info, now, 0)
            self.num_tokens += info.num_tokens
        with self._connection:
            self._connection.executemany(
                "INSERT OR REPLACE INTO learned VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                [(i.id, i.salt, i.context, i.parent, i.position, i.tokens.tobytes(), now, 0) for i in fresh],
            )
        return victims

    def shrink(self) -> list[str]:
        """Ids that must go because the budget is smaller than it was."""
        victims = self._least_worth(self.num_bytes - self.budget_bytes, set(), self._clock())
        assert victims is not None
        self.forget(victims)
        self.num_evicted += len(victims)
        return victims

    def used(self, ids: Iterable[str]) -> int:
        """A request has reused these; how many of them are in the account."""
        now = self._clock()
        known = [id for id in ids if id in self._held]
        for id in known:
            self._held[id].last_used, self._held[id].uses = now, self._held[id].uses + 1
        with self._connection:
            self._connection.executemany(
                "UPDATE learned SET last_used = ?, uses = uses + 1 WHERE id = ?", [(now, id) for id in known]
            )
        return len(known)

    def forget(self, ids: Iterable[str]) -> None:
        """These are gone."""
        gone = [id for id in ids if id in self._held]
        for id in gone:
            self.num_tokens -= self._held.pop(id).info.num_tokens
        with self._connection:
            self._connection.executemany("DELETE FROM learned WHERE id = ?", [(id,) for id in gone])

    def close(self) -> None:
        self._connection.close()

    def _least_worth(self, over_bytes: int, spared: set[str], now: float) -> list[str] | None:
        victims: list[str] = []
        if over_bytes <= 0:
            return victims
        for id, held in sorted(self._held.items(), key=lambda one: one[1].worth(now)):
            if id not in spared:
                victims.append(id)
                over_bytes -= held.info.num_tokens * self.token_bytes
                if over_bytes <= 0:
                    return victims
        return None


def ledger_path(fingerprint: str) -> Path:
    """Where the account for the engine with this fingerprint is kept."""
    return paths.home() / "learned" / f"{fingerprint[:32]}.db"


def _open(path: Path) -> sqlite3.Connection:
    """A file that is damaged, or of another shape, is begun anew."""
    paths.ensure_private(path.parent)
    for last_try in (False, True):
        path.touch(mode=0o600)
        connection = sqlite3.connect(path, check_same_thread=False)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = OFF")  # a crash of the machine may lose it
            connection.execute(_SCHEMA)
            connection.execute(
                "SELECT id, salt, context, parent, position, tokens, last_used, uses FROM learned"
            )
            connection.execute("PRAGMA quick_check").fetchone()
        except sqlite3.DatabaseError:
            connection.close()
            if last_try:
                raise
            path.unlink()
            continue
        return connection
    raise AssertionError
