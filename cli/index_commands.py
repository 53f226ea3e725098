"""`agentcache index`, `blocks`, `find`, `refs`, `watch` and `status`: what is in a repository, as blocks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentcache.cli import warm_command
from agentcache.cli.warm_command import ENGINE_URL, ApiKey, EngineUrl

if TYPE_CHECKING:
    from agentcache.indexer import Index

_Root = Annotated[Path, typer.Argument(metavar="PATH", help="Repository or folder.", show_default=".")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_HERE = Path(".")


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    for command in (index, blocks, find, refs, watch, status):
        app.command(command.__name__)(command)


def index(
    path: _Root = _HERE,
    as_json: _Json = False,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Forget the old index first.")] = False,
    max_file_bytes: Annotated[
        int | None, typer.Option(min=1, help="Leave larger files out, now and later (2 MiB unless set).")
    ] = None,
) -> None:
    """Index PATH: every file becomes blocks. Only what changed since last time is read."""
    import gc

    from agentcache.cli.index_output import Reporter, print_json, print_report, report_json

    # What an update makes holds no cycles, and walking all of it over and over takes a tenth of this process.
    gc.disable()
    with _open(path, max_file_bytes, rebuild=rebuild) as opened, Reporter(as_json) as reporter:
        report = opened.update(reporter.show, changes=False)
    if as_json:
        print_json(report_json(report))
    else:
        print_report(opened.root, report)


def blocks(
    path: _Root = _HERE,
    file: Annotated[str | None, typer.Option("--file", help="Only this file, below PATH.")] = None,
    as_json: _Json = False,
) -> None:
    """Print the blocks of a file, or of all files, in file order."""
    from agentcache.cli.index_output import block_json, print_json, print_table

    with _current(path) as opened:
        wanted = [_below(opened, file)] if file is not None else [record.path for record in opened.files()]
        found = [block for name in wanted for block in opened.blocks(name)]
    if as_json:
        print_json([block_json(block) for block in found])
        return
    rows = [
        (block.path, f"{block.start_line}-{block.end_line}", block.kind, block.qualified_name, block.id[:12])
        for block in found
    ]
    print_table(("file", "lines", "kind", "name", "id"), rows)


def find(
    name: Annotated[str, typer.Argument(help="A name, or Class.method.")],
    path: _Root = _HERE,
    as_json: _Json = False,
) -> None:
    """Say where NAME is defined."""
    from agentcache.cli.index_output import block_json, plain, print_json
    from agentcache.errors import UsageError

    with _current(path) as opened:
        found = opened.find(name)
        similar = [] if found else opened.similar_names(name)
    if as_json:
        print_json([block_json(block) for block in found])
    elif not found:
        hint = f"; similar: {', '.join(similar)}" if similar else ""
        raise UsageError(f"nothing called {name} is defined in {opened.root}{hint}")
    else:
        for block in found:
            what = f"{block.kind} {block.qualified_name}".rstrip()
            typer.echo(f"{plain(block.path)}:{block.start_line}-{block.end_line}  {plain(what)}")


def refs(
    name: Annotated[str, typer.Argument(help="A name.")],
    path: _Root = _HERE,
    as_json: _Json = False,
) -> None:
    """Say where NAME is called, imported, inherited from or used as a type; important files first."""
    from agentcache.cli.index_output import block_json, plain, print_json
    from agentcache.errors import UsageError

    with _current(path) as opened:
        rank = opened.importance()
        found = sorted(opened.refs(name), key=lambda ref: (-rank.get(ref.path, 0.0), ref.path, ref.line))
    if as_json:
        print_json(
            [
                {"name": name, "path": ref.path, "line": ref.line, "block": block_json(ref.block)}
                for ref in found
            ]
        )
    elif not found:
        raise UsageError(f"nothing in {opened.root} mentions {name}")
    else:
        for ref in found:
            where = f"{ref.block.kind} {ref.block.qualified_name}".rstrip()
            typer.echo(f"{plain(ref.path)}:{ref.line}  in {plain(where)}")


def watch(
    path: _Root = _HERE,
    as_json: _Json = False,
    warm: Annotated[bool, typer.Option("--warm", help="Keep it warm in a running server, too.")] = False,
    engine_url: EngineUrl = ENGINE_URL,
    model: Annotated[str, typer.Option(help="With --warm: as in `agentcache warm`.")] = "",
    api_key: ApiKey = "",
) -> None:
    """Keep the index of PATH right while its files change, and print what each change did. Ctrl-C ends it."""
    if warm:
        warm_command.warm(path, engine_url, "", True, model, api_key, as_json)
        return
    import signal
    import threading

    from agentcache.cli.index_output import plain, print_changes
    from agentcache.indexer import Watcher

    done = threading.Event()
    previous = signal.signal(signal.SIGTERM, lambda *_: done.set())
    with _open(path) as opened:
        watcher = Watcher(
            opened,
            lambda changes: print_changes(changes, as_json),
            on_status=lambda line: typer.echo(f"agentcache: {plain(line)}", err=True),
        )
        watcher.start()
        try:
            if watcher.wait_ready() and not as_json:
                files, blocks, _, _ = opened.totals()
                typer.echo(
                    f"watching {plain(str(opened.root))}: {files} files, {blocks} blocks; Ctrl-C ends it"
                )
            done.wait()
        except KeyboardInterrupt:
            pass  # the way to end it
        finally:
            watcher.stop()
            signal.signal(signal.SIGTERM, previous)


def status(
    path: _Root = _HERE,
    as_json: _Json = False,
    everything: Annotated[bool, typer.Option("--all", help="List every left-out file and folder.")] = False,
) -> None:
    """Say what the index of PATH holds, what is left out and why, and which files are in trouble."""
    from agentcache.cli.index_output import print_json, print_status, status_json

    with _current(path) as opened:
        if as_json:
            print_json(status_json(opened))
        else:
            print_status(opened, everything)


def _open(path: Path, max_file_bytes: int | None = None, *, rebuild: bool = False) -> Index:
    from agentcache.indexer import Index
    from agentcache.indexer.index import default_database, forget

    if rebuild:
        forget(default_database(path.expanduser()))
    opened = Index.open(path)
    if max_file_bytes is not None:
        opened.set_max_file_bytes(max_file_bytes)
    return opened


def _current(path: Path) -> Index:
    """The index of `path`, up to date or being brought up to date: yesterday's files help nobody."""
    from agentcache.cli.index_output import Reporter

    opened = _open(path)
    try:
        with Reporter(quiet=True) as reporter:
            opened.freshen(reporter.show)
    except BaseException:
        opened.close()
        raise
    return opened


def _below(opened: Index, file: str) -> str:
    """`file` as the index has it: a path below the root, whatever folder it was given from."""
    given = Path(file)
    if given.is_absolute():
        absolute = given.resolve() if not given.is_symlink() else given
        return absolute.relative_to(opened.root).as_posix() if absolute.is_relative_to(opened.root) else file
    if opened.file(given.as_posix()) is not None:
        return given.as_posix()
    here = given.resolve()
    return here.relative_to(opened.root).as_posix() if here.is_relative_to(opened.root) else file
