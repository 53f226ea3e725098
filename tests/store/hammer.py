"""Run by the tests in processes of their own: use a store in a way that a test cannot in its own process.

hammer.py killed ROOT FIRST LAST     two children put, read, evict and remove entries over and over; for each line
                                     on stdin ("one", "both") they are killed at a random moment, then "killed" is
                                     printed, or "wrong" if one of them had read anything else than was put
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
import select
import signal
import sys
import time
import traceback
from pathlib import Path

from agentcache.store import EntryMissing, EntryStore

spec = importlib.util.spec_from_file_location("entries", Path(__file__).with_name("conftest.py"))
assert spec is not None
assert spec.loader is not None
entries = importlib.util.module_from_spec(spec)
spec.loader.exec_module(entries)
NOBODY = 65534
BUDGET = 30 * (4096 + 50 * (entries.LAYOUT.token_bytes + 4))


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


def work_for_ever(root: str, seeds: range, started: int) -> None:
    """Put, read, remove and evict: both tiers hold about half of the entries."""
    store = EntryStore.open(Path(root), entries.MODEL, entries.LAYOUT, BUDGET, BUDGET)
    chance = random.Random(os.getpid())
    made = {seed: entries.make_entry(seed) for seed in seeds}
    os.write(started, b".")
    while True:
        info, kv = made[chance.choice(seeds)]
        draw = chance.random()
        if draw < 0.5:
            store.put(info, kv)
        elif draw < 0.95:
            try:
                if entries.bits(store.read(info.id)) != entries.bits(kv):
                    os.write(started, b"!")
            except EntryMissing:
                pass
        else:
            store.remove(info.id)


def kill_workers(root: str, seeds: range) -> None:
    """Two processes at a time; for each line on stdin one of them is killed, or both, and replaced."""
    chance = random.Random(4)
    children: list[int] = []
    reader, started = os.pipe()
    for line in sys.stdin:
        while len(children) < 2:
            child = os.fork()  # imports are paid for once; nothing has run yet that a fork would break
            if child == 0:
                try:
                    work_for_ever(root, seeds, started)
                finally:
                    traceback.print_exc()
                    os._exit(1)
            children.append(child)
            while not select.select([reader], [], [], 1)[0]:
                assert os.waitpid(child, os.WNOHANG) == (0, 0), "a child ended by itself"
            os.read(reader, 1)
        time.sleep(chance.random() * 0.05)
        for child in children[: 2 if line == "both\n" else 1]:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        children = [] if line == "both\n" else children[1:]
        os.set_blocking(reader, False)
        try:
            wrong = b"!" in os.read(reader, 1000)
        except BlockingIOError:
            wrong = False
        os.set_blocking(reader, True)
        print("wrong" if wrong else "killed", flush=True)
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def main(action: str, root: str, *numbers: str) -> None:
    if action == "killed":
        kill_workers(root, range(*map(int, numbers)))
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
