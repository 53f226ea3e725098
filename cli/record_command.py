"""`agentcache record`: a proxy that writes any agent's traffic as a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command()(record)


def record(
    upstream: Annotated[str, typer.Option(metavar="URL", help="The server that answers.")],
    out: Annotated[
        Path, typer.Option(metavar="TRACE", help="File to write; compressed if it ends with .gz.")
    ],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where to listen; 0 takes a free one.")] = 8200,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
) -> None:
    """Pass requests on to a server, and write them and their answers as a trace; Ctrl-C ends it.

    Keys and authorization headers are never written.
    """
    import signal

    from agentcache.record.serve import record as run

    def ready(url: str) -> None:
        typer.echo(f"recording: {url} passes on to {upstream} and writes {out}; Ctrl-C ends it", err=True)

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    count = run(upstream, host, port, out, ready)
    typer.echo(f"{count} requests written to {out}", err=True)
