"""What waits to be warmed, in order: classes of urgency, and within one the order in which things came."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from agentcache.warm.job import Urgency

EACH_ALONE = "*"


@dataclass(frozen=True, slots=True)
class WarmItem:
    """One thing to keep warm. block: None is the whole file, an id this block alone, EACH_ALONE each function alone."""

    path: str
    block: str | None = None


class WarmQueue:
    """Items, each once, in the most urgent class it was added to."""

    def __init__(self) -> None:
        self._classes: dict[Urgency, dict[WarmItem, None]] = {urgency: {} for urgency in Urgency}
        self._where: dict[WarmItem, Urgency] = {}

    def __len__(self) -> int:
        return len(self._where)

    def __iter__(self) -> Iterator[WarmItem]:
        """In the order in which `pop` would return them."""
        for items in self._classes.values():
            yield from items

    def add(self, item: WarmItem, urgency: Urgency) -> None:
        """Put it behind the others of its class, unless it waits in as urgent a class already."""
        before = self._where.get(item)
        if before is not None:
            if before <= urgency:
                return
            del self._classes[before][item]
        self._classes[urgency][item] = None
        self._where[item] = urgency

    def pop(self) -> tuple[WarmItem, Urgency]:
        """The next item and its class. KeyError if there is none."""
        urgency = self.urgency()
        if urgency is None:
            raise KeyError("nothing waits")
        item = next(iter(self._classes[urgency]))
        del self._classes[urgency][item]
        del self._where[item]
        return item, urgency

    def urgency(self) -> Urgency | None:
        """Class of the next item; None if there is none."""
        return next((urgency for urgency, items in self._classes.items() if items), None)

    def discard(self, path: str) -> None:
        """Forget everything of one file."""
        for item in [item for item in self._where if item.path == path]:
            del self._classes[self._where.pop(item)][item]

    def counts(self) -> Counter[Urgency]:
        """Items by class, empty classes left out."""
        return Counter(self._where.values())
