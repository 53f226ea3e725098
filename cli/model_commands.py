"""`agentcache model`: fetch models by name, list what is here."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from agentcache.models import Progress

_JSON = typer.Option(False, "--json", help="Print JSON.")
_STAGES = {
    "wait": "waiting for another pull",
    "download": "downloading",
    "verify": "verifying",
    "convert": "converting",
}


def register(app: typer.Typer) -> None:
    """Add `agentcache model ...` to `app`."""
    model = typer.Typer(no_args_is_help=True, help="Models by name: pull, ls.")
    model.command("pull")(pull)
    model.command("ls")(ls)
    app.add_typer(model, name="model")


def pull(
    name: str = typer.Argument(..., help="A registered name, such as smollm2-135m."), as_json: bool = _JSON
) -> None:
    """Fetch a registered model, verify it, and convert it once."""
    from agentcache import models

    there = models.is_pulled(models.known(name))
    with progress_shown(name, quiet=as_json or there) as progress:
        folder = models.pull(name, progress)
    if as_json:
        typer.echo(
            json.dumps({"name": name, "path": str(folder), "bytes": _size(folder), "pulled": not there})
        )
    else:
        typer.echo(str(folder))


def ls(as_json: bool = _JSON) -> None:
    """List the registered models."""
    from agentcache import models

    listed = []
    for model in models.KNOWN.values():
        folder, there = models.model_folder(model), models.is_pulled(model)
        listed.append(
            {
                "name": model.name,
                "pulled": there,
                "path": str(folder) if there else None,
                "bytes": _size(folder) if there else 0,
                "context": model.context,
                "license": model.license,
            }
        )
        if not as_json:
            state = f"{_size(folder) / 1e6:.0f} MB in {folder}" if there else "not pulled"
            typer.echo(f"{model.name}  {model.context} tokens  {model.license}  {state}")
    if as_json:
        typer.echo(json.dumps(listed))


@contextmanager
def progress_shown(name: str, *, quiet: bool = False) -> Iterator[Progress]:
    """A bar on a terminal, a line a stage elsewhere, both on stderr; nothing if `quiet`."""
    if quiet:
        yield lambda stage, done, total: None
    elif not sys.stderr.isatty():
        yield _plain(name)
    else:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
            task = bars.add_task(name, total=None)

            def show(stage: str, done: int, total: int) -> None:
                bars.update(
                    task, description=f"{name}: {_STAGES[stage]}", completed=done, total=total or None
                )

            yield show


def _plain(name: str) -> Progress:
    last = ""

    def show(stage: str, done: int, total: int) -> None:
        nonlocal last
        if stage != last:
            last = stage
            typer.echo(f"{name}: {_STAGES[stage]}", err=True)

    return show


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
