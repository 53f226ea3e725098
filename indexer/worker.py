"""A parser process: (language, bytes) on stdin, what is in them on stdout, until stdin ends."""

from __future__ import annotations

import gc
import marshal
import os
import signal
from multiprocessing.connection import Connection

from agentcache.indexer.parse import Parsed, ParsedBlock, ParsedMention, ParsedName, parse_bytes

_GRACE_S = 5.0
"""CPU seconds over its budget after which a parse is taken to hang in code that looks at no clock."""

Packed = tuple[
    str, list[tuple[object, ...]], list[tuple[object, ...]], list[tuple[object, ...]]
]  # what `marshal` takes


def main(budget_s: float) -> None:
    """Serve requests one after the other; die of SIGPROF in one that hangs."""
    requests = Connection(os.dup(0), writable=False)
    answers = Connection(os.dup(1), readable=False)
    # What a library prints must not end up among the answers.
    os.dup2(2, 1)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    # Trees die by reference counting, and every collection would walk all the answers' tuples.
    gc.disable()
    while True:
        try:
            language, data = marshal.loads(requests.recv_bytes())
            signal.setitimer(signal.ITIMER_PROF, budget_s + _GRACE_S)
            answer = packed(parse_bytes(data, language, budget_s))
            signal.setitimer(signal.ITIMER_PROF, 0)
            answers.send_bytes(marshal.dumps(answer))
        except (EOFError, BrokenPipeError, KeyboardInterrupt):
            return


def packed(parsed: Parsed) -> Packed:
    """`parsed` as plain tuples."""
    return (
        parsed.note,
        [tuple(block) for block in parsed.blocks],
        [tuple(name) for name in parsed.names],
        [tuple(mention) for mention in parsed.mentions],
    )


def unpacked(answer: Packed) -> Parsed:
    """What `packed` was given."""
    note, blocks, names, mentions = answer
    return Parsed(
        note,
        [ParsedBlock._make(row) for row in blocks],
        [ParsedName._make(row) for row in names],
        [ParsedMention._make(row) for row in mentions],
    )
