"""The numbers that the matcher and its reference share; `reference.py` spells out what they bound."""

from __future__ import annotations

from typing import Final

import numpy as np

from agentcache.entry import context_digest

EMPTY_CONTEXT: Final = context_digest(np.empty(0, np.int32))
"""Context of what was computed behind nothing."""

MIN_SPAN: Final = 16
"""Tokens in a fingerprint window, and in the shortest span that is not chained to another one."""

TRIES: Final = 4
"""Entries tried from each end of the list of those that share one fingerprint: the newest computed behind
something, and the newest computed behind nothing."""

MAX_CHILDREN: Final = 64
"""Newest children of an entry that are compared when a span reaches the entry's end."""

OVERLAP: Final = 64
"""How many tokens a new span looks into the spans before it, to settle which of them is cut."""

RECENT_SPANS: Final = 4
"""Spans before a hole in which an ancestor of the block behind it is looked for."""

MAX_ANCESTORS: Final = 8
"""Parents walked up from the block behind a hole."""

MAX_HOLE: Final = 2048
"""Tokens from the end of an ancestor's span beyond which a block no longer counts as its file's next."""

MAX_GAP: Final = 6
"""Tokens of an entry that may have changed between two runs that are joined: a line's number."""

MAX_LONGER: Final = 2
"""How many tokens more, or fewer, stand there now: 99 has become 100."""

MIN_RESUMED: Final = 3
"""Equal tokens behind a gap that make it one."""

MIN_GAPS: Final = 4
"""Gaps that make a run: an edited line or two is no change of all numbers."""

MIN_BARRIER: Final = 64
"""A span of another file of so many tokens ends a run that reaches it; a shorter one is taken for a coincidence."""
