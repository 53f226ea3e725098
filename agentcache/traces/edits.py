"""Small edits of Python functions, as a developer makes them between two runs."""

from __future__ import annotations

import random
from collections.abc import Mapping

from agentcache.traces.pyobjects import parse_files


def edited(sources: Mapping[str, str], count: int, rng: random.Random) -> dict[str, str]:
    """The sources with `count` functions changed (fewer if there are fewer): one line of code is added to each."""
    functions = [one for file in parse_files(sources) for one in file.objects if not one.is_class]
    changed = dict(sources)
    chosen = rng.sample(functions, min(count, len(functions)))
    # from below, so that line numbers above stay right
    for one in sorted(chosen, key=lambda one: (one.file, -one.node.lineno)):
        lines = changed[one.file].split("\n")
        first = one.node.body[0]
        if first.lineno == one.node.lineno:
            continue  # `def f(): ...` on one line
        indent = " " * first.col_offset
        lines.insert(first.lineno - 1, f"{indent}checked_{rng.randrange(10**6)} = {rng.randrange(10**6)}")
        changed[one.file] = "\n".join(lines)
    return changed
