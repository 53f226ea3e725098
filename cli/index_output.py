"""What the index commands print: for people on a terminal, plain lines in a pipe, JSON for programs."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import typer

from agentcache.indexer.policy import REASONS

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from agentcache.indexer import Block, ChangeRecord, Index, IndexReport, Progress

_PLAIN_EVERY_S = 2.0
_FEW = 20


def plain(text: str) -> str:
    """`text` on one line that any terminal takes: what cannot be printed is escaped."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def print_json(value: object) -> None:
    """`value` as one line of ASCII; paths that are no UTF-8 keep their surrogates."""
    typer.echo(json.dumps(value))


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A rich table on a terminal, tab-separated lines in a pipe."""
    if not sys.stdout.isatty():
        for row in rows:
            typer.echo("\t".join(map(plain, row)))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*heads, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(Text(plain(cell)) for cell in row))
    Console().print(table)


class Reporter:
    """Shows an update's progress on stderr: a bar with rate and time left on a terminal, lines in a pipe.

    quiet: nothing in a pipe, and nothing on a terminal for an update that is done at once
    """

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self._last = time.monotonic()

    def show(self, progress: Progress) -> None:
        """Called a few times a second while the update runs."""
        if sys.stderr.isatty():
            self._show_bar(progress)
        elif not self._quiet and time.monotonic() - self._last > _PLAIN_EVERY_S:
            self._last = time.monotonic()
            left = progress.eta_seconds
            typer.echo(
                f"indexing: {progress.files}/{progress.total_files} files, "
                f"{progress.bytes_per_second / 1e6:.1f} MB/s, "
                f"{'?' if left is None else f'{left:.0f}'} s left",
                err=True,
            )

    def _show_bar(self, progress: Progress) -> None:
        if self._bar is None:
            if progress.seconds < 0.3:
                return
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                DownloadColumn,
                TaskProgressColumn,
                TextColumn,
                TimeRemainingColumn,
                TransferSpeedColumn,
            )
            from rich.progress import Progress as RichProgress

            self._bar = RichProgress(
                TextColumn("indexing {task.fields[files]}"),
                BarColumn(),
                TaskProgressColumn(),
                DownloadColumn(),
                TransferSpeedColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task("", total=progress.total_bytes, files="")
        assert self._task is not None
        files = f"{progress.files}/{progress.total_files}"
        self._bar.update(self._task, completed=progress.bytes, total=progress.total_bytes, files=files)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


def block_json(block: Block) -> dict[str, object]:
    """The stable keys of a block."""
    return {
        "id": block.id,
        "path": block.path,
        "kind": block.kind,
        "name": block.name,
        "start_line": block.start_line,
        "end_line": block.end_line,
        "start_byte": block.start_byte,
        "end_byte": block.end_byte,
    }


def report_json(report: IndexReport) -> dict[str, object]:
    """The stable keys of an update."""
    return {
        "files": report.files,
        "blocks": report.blocks,
        "languages": dict(report.languages),
        "bytes": report.bytes,
        "seconds": round(report.seconds, 4),
        "parsed_files": report.parsed_files,
        "unchanged_files": report.unchanged_files,
        "skipped": dict(report.skipped),
        "errors": [{"path": problem.path, "reason": problem.reason} for problem in report.errors],
    }


def print_report(root: Path, report: IndexReport) -> None:
    """An update in a few lines."""
    languages = ", ".join(f"{name} {count}" for name, count in report.languages.items())
    typer.echo(
        f"{plain(str(root))}: {report.files} files, {report.blocks} blocks, {report.bytes / 1e6:.1f} MB "
        f"in {report.seconds:.2f} s ({report.parsed_files} parsed, {report.unchanged_files} unchanged)"
    )
    if languages:
        typer.echo(f"languages: {languages}")
    if report.skipped:
        typer.echo(f"left out: {_counts(report.skipped)}")
    _print_problems([(problem.path, problem.reason) for problem in report.errors])


def print_changes(changes: list[ChangeRecord], as_json: bool) -> None:
    """One line a changed file."""
    for change in changes:
        if as_json:
            sides = {"added": change.added, "removed": change.removed, "kept": change.kept}
            print_json(
                {"path": change.path} | {key: list(map(block_json, side)) for key, side in sides.items()}
            )
            continue
        names = dict.fromkeys(
            block.qualified_name or block.kind for block in (*change.added, *change.removed)
        )
        typer.echo(
            f"{plain(change.path)}: +{len(change.added)} -{len(change.removed)} ={len(change.kept)}  "
            f"{plain(', '.join(list(names)[:8]))}{' ...' if len(names) > 8 else ''}"
        )


def status_json(index: Index) -> dict[str, Any]:
    """The stable keys of `status`: the index part."""
    files, blocks, size, languages = index.totals()
    left_out = index.left_out()
    checkout = index.checkout()
    return {
        "root": str(index.root),
        "database": str(index.db_path),
        "head": checkout.head() if checkout else "",
        "files": files,
        "blocks": blocks,
        "bytes": size,
        "languages": languages,
        "skipped": dict(sorted(Counter(reason for _, reason in left_out).items())),
        "left_out": [{"path": path, "reason": reason} for path, reason in left_out],
        "errors": [{"path": problem.path, "reason": problem.reason} for problem in index.problems()],
    }


def print_status(index: Index, everything: bool) -> None:
    """`status` for people: totals, then what is left out and why."""
    value = status_json(index)
    size = f"{value['bytes'] / 1e6:.1f} MB"
    typer.echo(f"{plain(value['root'])}: {value['files']} files, {value['blocks']} blocks, {size}")
    if value["head"]:
        typer.echo(f"HEAD: {value['head']}")
    typer.echo("languages: " + ", ".join(f"{name} {count}" for name, count in value["languages"].items()))
    typer.echo(f"index: {plain(value['database'])}")
    for reason, count in value["skipped"].items():
        typer.echo(f"left out, {REASONS[reason]}: {count}")
        paths = [entry["path"] for entry in value["left_out"] if entry["reason"] == reason]
        for path in paths if everything else paths[:_FEW]:
            typer.echo(f"  {plain(path)}")
        if len(paths) > _FEW and not everything:
            typer.echo(f"  ... and {len(paths) - _FEW} more (--all)")
    _print_problems([(problem["path"], problem["reason"]) for problem in value["errors"]])


def _print_problems(problems: list[tuple[str, str]]) -> None:
    for path, reason in problems:
        typer.secho(f"{plain(path) or '.'}: {reason}", fg="yellow")


def _counts(counts: object) -> str:
    assert isinstance(counts, dict)
    return ", ".join(f"{REASONS[reason]} {count}" for reason, count in counts.items())
