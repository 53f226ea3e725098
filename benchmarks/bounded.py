"""Stopping a benchmark when its time is up, but not before there is enough to tell."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def add_at_most(parser: argparse.ArgumentParser, what: str) -> None:
    """The option `--at-most S`; `what`: which of the things measured are not begun after S seconds."""
    parser.add_argument(
        "--at-most", type=float, default=math.inf, metavar="S", help=f"begin no {what} after so many seconds"
    )


def bounded(items: Iterable[T], at_least: int, at_most_s: float) -> Iterator[T]:
    """`items`, until `at_most_s` seconds after the first was asked for, but `at_least` so many."""
    began = time.perf_counter()
    for number, item in enumerate(items):
        if number >= at_least and time.perf_counter() - began > at_most_s:
            return
        yield item
