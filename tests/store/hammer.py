"""Run by the tests in processes of their own: use a store in a way that a test cannot in its own process.

hammer.py write ROOT FIRST LAST      put entries over and over until killed; prints each durable round
hammer.py once ROOT FIRST LAST       put entries FIRST..LAST once, read everything back, print the stats
hammer.py limited ROOT BYTES         the same for 20 entries, with files limited to BYTES (a full disk)
hammer.py nobody ROOT FIRST LAST     the same as `once`, without the right to write ROOT
"""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import sys
from itertools import count
from pathlib import Path

from agentcache.store import EntryMissing, EntryStore

spec = importlib.util.spec_from_file_location("entries", Path(__file__).with_name("conftest.py"))
assert spec is not None
assert spec.loader is not None
entries = importlib.util.module_from_spec(spec)
spec.loader.exec_module(entries)
NOBODY = 65534


def open_store(root: str) -> EntryStore:
    return EntryStore.open(Path(root), entries.MODEL, entries.LAYOUT, 1 << 22, 1 << 23)


def put_and_read(root: str, seeds: range) -> None:
    store = open_store(root)
    for seed in seeds:
        store.put(*entries.make_entry(seed))
    store.flush(60)
    wrong = read = 0
    for info in store.infos():
        try:
            kv = store.read(info.id)
        except EntryMissing:  # the other process has evicted or removed it
            continue
        read += 1
        wrong += not any(entries.bits(kv) == entries.bits(entries.make_entry(seed)[1]) for seed in range(60))
    stats = store.stats()
    store.close()
    print(json.dumps({"read": read, "wrong": wrong, "errors": stats.errors, "pending": stats.pending}))


def write_until_killed(root: str, seeds: range) -> None:
    store = open_store(root)
    for number in count():
        for seed in seeds:
            store.put(*entries.make_entry(seed))
        store.flush(60)
        print("round", number, flush=True)
        for seed in seeds:
            store.remove(entries.make_entry(seed)[0].id)


def main(action: str, root: str, *numbers: str) -> None:
    if action == "write":
        write_until_killed(root, range(*map(int, numbers)))
    elif action == "once":
        put_and_read(root, range(*map(int, numbers)))
    elif action == "limited":
        limit = int(numbers[0])
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        put_and_read(root, range(20))
    elif action == "nobody":
        if os.geteuid() == 0:
            os.setuid(NOBODY)  # permissions do not bind the superuser
        put_and_read(root, range(*map(int, numbers)))


if __name__ == "__main__":
    main(*sys.argv[1:])
