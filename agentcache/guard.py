"""Ends an engine whose starter is gone: `python guard.py PROCESS_GROUP`, with the starter's end of a pipe as input.

A starter that is killed with SIGKILL cannot stop what it started. Its end of the pipe closes all the same; then this
process ends the engine's group. It is started beside every engine and killed when the engine has been stopped in order.
Run as a script, with the standard library alone, so that it starts in no time and needs no memory to speak of.
"""

from __future__ import annotations

import os
import signal
import sys
import time

_GRACE_S = 10.0


def main(group: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdin.buffer.read()  # until the starter is gone
    for sig, wait_s in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, 0.0)):
        deadline = time.monotonic() + wait_s
        while True:
            try:
                os.killpg(group, sig)
            except ProcessLookupError:
                return
            if time.monotonic() >= deadline:
                break
            time.sleep(0.5)


if __name__ == "__main__":
    main(int(sys.argv[1]))
