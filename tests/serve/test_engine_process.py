"""The server's process does not outlive its engine core."""

from __future__ import annotations

import subprocess
import sys

OUTLIVES = """
import multiprocessing, os, signal, sys, threading, time
from agentcache.engine_process import end_with_the_core

if __name__ == "__main__":
    core = multiprocessing.get_context("spawn").Process(target=time.sleep, args=[600])
    core.start()
    threading.Thread(target=end_with_the_core, args=[0.5], daemon=True).start()
    time.sleep(1)  # it has to see the core alive first
    if sys.argv[1] == "killed":
        os.kill(core.pid, signal.SIGKILL)
    time.sleep(4)
    print("still here", flush=True)
    core.kill()
"""


def run(core: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", OUTLIVES, core], capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout


def test_a_server_that_waits_for_ever_ends_with_its_core() -> None:
    assert run("killed") == (1, "")


def test_it_lives_while_its_core_does() -> None:
    assert run("alive") == (0, "still here\n")
