"""`agentcache store`: look at, verify, collect and clear the stored entries. Works without an engine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from agentcache.store.admin import StoreAdmin

_JSON = typer.Option(False, "--json", help="Print JSON.")
_MODEL = typer.Option("", "--model", help="Only models whose fingerprint starts with this.")


def register(app: typer.Typer) -> None:
    """Add `agentcache store ...` to `app`."""
    store = typer.Typer(no_args_is_help=True, help="The stored entries: status, ls, verify, gc, clear.")
    store.command("status")(status)
    store.command("ls")(ls)
    store.command("verify")(verify)
    store.command("gc")(gc)
    store.command("clear")(clear)
    app.add_typer(store, name="store")


def status(as_json: bool = _JSON) -> None:
    """How many entries of which model take how much."""
    from agentcache.paths import store_dir
    from agentcache.store.units import human_bytes

    with _open() as admin:
        models, elsewhere = admin.models(), admin.open_elsewhere
        in_memory, memory_bytes = admin.in_memory()
    total = {"entries": sum(use.entries for use in models), "bytes": sum(use.bytes for use in models)}
    if as_json:
        _print_json(
            {
                "path": str(store_dir()),
                **total,
                "open_by": elsewhere,
                "ram": {"entries": in_memory, "bytes": memory_bytes},
                "models": [asdict(use) for use in models],
            }
        )
        return
    typer.echo(f"{store_dir()}: {total['entries']} entries, {human_bytes(total['bytes'])}")
    if in_memory:
        typer.echo(f"in shared memory: {in_memory} entries, {human_bytes(memory_bytes)}")
    rows = [
        (use.model[:16], str(use.entries), human_bytes(use.bytes), use.dtype, human_bytes(use.token_bytes))
        for use in models
    ]
    _print_table(("model", "entries", "size", "dtype", "a token"), rows)
    if elsewhere:
        typer.echo(f"open in {elsewhere} other process{'es' if elsewhere > 1 else ''}")


def ls(
    model: str = _MODEL,
    limit: int = typer.Option(50, "--limit", "-n", min=0, help="At most this many; 0 for all."),
    as_json: bool = _JSON,
) -> None:
    """List entries."""
    from itertools import islice

    from agentcache.store.units import human_age, human_bytes

    with _open() as admin:
        entries = list(islice(admin.entries(model), limit or None))
    if as_json:
        _print_json([asdict(entry) for entry in entries])
        return
    rows = [
        (
            entry.id[:12],
            entry.model[:8],
            entry.salt[:8],
            str(entry.num_tokens),
            str(entry.position),
            human_bytes(entry.size_bytes),
            human_age(entry.unused_s),
            str(entry.uses),
        )
        for entry in entries
    ]
    _print_table(("entry", "model", "salt", "tokens", "position", "size", "unused", "reads"), rows)


def verify(
    remove: bool = typer.Option(False, "--remove", help="Delete damaged files, so that they are recomputed."),
    as_json: bool = _JSON,
) -> None:
    """Read every file and compare checksums; exit code 1 if one is damaged and stays."""
    from agentcache.store.units import human_bytes

    checked = size = 0
    problems: list[dict[str, str]] = []
    with _open() as admin:
        at_open = admin.repair().corrupt
        for result in admin.verify(remove=remove):
            checked += 1
            size += result.size_bytes
            if result.problem:
                problems.append({"path": str(result.path), "problem": result.problem})
                if not as_json:
                    typer.echo(f"{result.path}: {result.problem}")
    if as_json:
        _print_json({"checked": checked, "bytes": size, "problems": problems, "removed_at_open": at_open})
    else:
        typer.echo(f"{checked} files, {human_bytes(size)}, {len(problems)} damaged")
    if problems and not remove:
        raise typer.Exit(1)


def gc(
    max_size: str = typer.Option(
        "", "--max-size", help="Evict the least recently used down to this: 2GB, 512MiB."
    ),
    unused: str = typer.Option("", "--unused", help="Evict what nobody read for so long: 30d, 12h."),
    as_json: bool = _JSON,
) -> None:
    """Repair the catalog, delete leftovers of killed processes, and evict what is asked for."""
    from agentcache.store.units import human_bytes, parse_age, parse_bytes

    max_bytes = parse_bytes(max_size) if max_size else None
    unused_s = parse_age(unused) if unused else None
    with _open() as admin:
        repaired = admin.repair()
        removed = admin.collect(max_bytes=max_bytes, unused_s=unused_s)
    if as_json:
        _print_json({"evicted": removed.entries, "bytes": removed.bytes, **asdict(repaired)})
        return
    typer.echo(
        f"evicted {removed.entries} entries, {human_bytes(removed.bytes)}; "
        f"adopted {repaired.adopted} files, dropped {repaired.dropped} rows, "
        f"deleted {repaired.corrupt} damaged files"
    )


def clear(
    model: str = _MODEL,
    salt: str = typer.Option("", "--salt", help="Only the entries of this salt."),
    shared: bool = typer.Option(False, "--shared", help="Only the entries without a salt."),
    yes: bool = typer.Option(False, "--yes", "-y", help="Do not ask."),
    as_json: bool = _JSON,
) -> None:
    """Delete entries: all, or those of a model or a salt."""
    from agentcache.errors import UsageError
    from agentcache.paths import store_dir
    from agentcache.store.admin import StoreAdmin
    from agentcache.store.ranks import rank_roots
    from agentcache.store.units import human_bytes

    if salt and shared:
        raise UsageError("--salt and --shared exclude each other")
    if not yes and not as_json:
        typer.confirm("Delete stored entries? They are computed again when needed", abort=True)
    chosen = salt if salt else "" if shared else None
    with _open() as admin:
        removed = admin.clear(model=model, salt=chosen)
    for root in rank_roots(store_dir())[1:]:  # the same entries' other heads
        with suppress(UsageError), StoreAdmin(root) as admin:
            admin.clear(model=model, salt=chosen)
    if as_json:
        _print_json(asdict(removed))
    else:
        typer.echo(f"deleted {removed.entries} entries, {human_bytes(removed.bytes)}")


def _open() -> StoreAdmin:
    from agentcache.paths import store_dir
    from agentcache.store.admin import StoreAdmin

    return StoreAdmin(store_dir())


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value))


def _print_table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table

    if not rows:
        return
    table = Table(box=None, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    Console().print(table)
