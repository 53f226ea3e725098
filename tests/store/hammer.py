"""Run by the tests in processes of their own: use a store in a way that a test cannot in its own process.

hammer.py killed ROOT FIRST LAST     a child puts and removes entries over and over and is killed at a random
                                     moment; then "killed" is printed; again for each line on stdin
hammer.py once ROOT FIRST LAST       put entries FIRST..LAST once, read everything back, print the stats
hammer.py limited ROOT BYTES         the same for 20 entries, with files limited to BYTES
hammer.py nobody ROOT FIRST LAST     the same as `once`, without the right to write ROOT
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import resource
import signal
import sys
import time
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


def write_for_ever(root: str, seeds: range, started: int) -> None:
    store = open_store(root)
    while True:
        for seed in seeds:
            store.put(*entries.make_entry(seed))
        store.flush(60)
        os.write(started, b".")
        for seed in seeds:
            store.remove(entries.make_entry(seed)[0].id)


def kill_writers(root: str, seeds: range) -> None:
    chance = random.Random(4)
    for _ in sys.stdin:
        reader, started = os.pipe()
        child = os.fork()  # imports are paid for once; nothing has run yet that a fork would break
        if child == 0:
            write_for_ever(root, seeds, started)
        os.read(reader, 1)  # one round is durable
        time.sleep(chance.random() * 0.3)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reader)
        os.close(started)
        print("killed", flush=True)


def main(action: str, root: str, *numbers: str) -> None:
    if action == "killed":
        kill_writers(root, range(*map(int, numbers)))
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
