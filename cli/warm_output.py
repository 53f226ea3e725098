"""How warming shows itself: a table that is drawn again on a terminal, a line now and then in a pipe, or JSON."""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import typer

from agentcache.cli.index_output import plain

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

    from agentcache.warm.progress import Edit, Progress

_EVERY_S = 2.0
_EDITS = 6


class View(Protocol):
    """Where progress goes."""

    def show(self, progress: Progress) -> None:
        """It has gone on, or its state has changed."""
        ...

    def say(self, line: str) -> None:
        """Something else that people should know."""
        ...

    def end(self, progress: Progress) -> None:
        """It is over."""
        ...


class Lines:
    """A line when the state changes and every two seconds between; with `as_json` each time, as an object."""

    def __init__(self, as_json: bool = False) -> None:
        self._as_json = as_json
        self._state = ""
        self._told_at = 0.0
        self._edit_at = 0.0

    def show(self, progress: Progress) -> None:
        if self._as_json:
            typer.echo(json.dumps(progress.to_dict()))
            return
        edit = progress.last_edit
        if edit is not None and edit.at != self._edit_at:
            self._edit_at = edit.at
            typer.echo(f"edit: {edit_line(edit)}")
        now = time.monotonic()
        if progress.state != self._state or now - self._told_at > _EVERY_S:
            self._state, self._told_at = progress.state, now
            typer.echo(f"{progress.state}: {summary(progress)}")

    def say(self, line: str) -> None:
        typer.echo(f"agentcache: {plain(line)}", err=True)

    def end(self, progress: Progress) -> None:
        if self._as_json:
            typer.echo(json.dumps(progress.to_dict()))
        else:
            typer.echo(f"{progress.state}: {summary(progress)}")


class Table_:
    """A table that is drawn again in place."""

    def __init__(self, live: Live, console: Console) -> None:
        self._live, self._console = live, console
        self._edits: deque[Edit] = deque(maxlen=_EDITS)

    def show(self, progress: Progress) -> None:
        edit = progress.last_edit
        if edit is not None and (not self._edits or self._edits[-1].at != edit.at):
            self._edits.append(edit)
        self._live.update(table_of(progress, list(self._edits)), refresh=True)

    def say(self, line: str) -> None:
        self._console.print(plain(line), markup=False)

    def end(self, progress: Progress) -> None:
        self.show(progress)


@contextmanager
def live_view() -> Iterator[View]:
    """The table on a terminal, lines elsewhere."""
    if not sys.stdout.isatty():
        yield Lines()
        return
    from rich.console import Console
    from rich.live import Live

    console = Console()
    with Live(console=console, auto_refresh=False) as live:
        yield Table_(live, console)


def table_of(progress: Progress, edits: list[Edit]) -> Table:
    """Everything at a glance: how warm, what waits, how fast, what it keeps, the last edits."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    from agentcache.store.units import human_bytes

    table = Table(title=f"warming: {progress.state}", title_justify="left", show_header=False, box=None)
    bar = ProgressBar(total=max(1, progress.blocks), completed=progress.warm_blocks, width=30)
    table.add_row("warm", bar, f"{progress.warm_blocks:,} of {progress.blocks:,} blocks")
    waiting = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in progress.queue.items())
    table.add_row("queue", Text(waiting or "nothing"), f"{progress.queued_blocks:,} blocks")
    table.add_row(
        "computed", f"{progress.tokens_computed:,} tokens", f"{progress.tokens_per_s:,.0f} tokens/s"
    )
    refused = f"{progress.refused} did not fit" if progress.refused else ""
    room = f"{human_bytes(progress.used_bytes)} of {human_bytes(progress.budget_bytes)}"
    table.add_row("kept", room, refused)
    for edit in reversed(edits):
        table.add_row("edit", Text(plain(edit.path)), edit_line(edit, path=False))
    return table


def summary(progress: Progress) -> str:
    """One line."""
    full = f", {progress.refused} did not fit the budget" if progress.refused else ""
    return (
        f"{progress.warm_blocks} of {progress.blocks} blocks warm, {progress.queued_blocks} queued, "
        f"{progress.tokens_computed} tokens computed, {progress.tokens_per_s:.0f} tokens/s{full}"
    )


def edit_line(edit: Edit, path: bool = True) -> str:
    """One line."""
    where = f"{plain(edit.path)}, " if path else ""
    return f"{where}{edit.blocks} blocks, {edit.tokens} of {edit.file_tokens} tokens, {edit.seconds:.2f} s"
