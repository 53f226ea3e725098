"""`agentcache warm`: keep a repository warm in a server that runs already; `agentcache watch --warm` shows it live."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from agentcache.cli.warm_output import View

ENGINE_URL = "http://127.0.0.1:8100"

EngineUrl = Annotated[
    str, typer.Option(envvar="AGENTCACHE_ENGINE_URL", help="The server: vLLM with agentcache's plug-in.")
]
ApiKey = Annotated[
    str,
    typer.Option(envvar="AGENTCACHE_API_KEY", help="The server's key, if it wants one.", show_envvar=True),
]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command()(warm)


def warm(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="Repository or folder.")],
    engine_url: EngineUrl = ENGINE_URL,
    budget: Annotated[
        str, typer.Option(help="Most bytes of entries to keep, like 2GB; most of the disk tier unless given.")
    ] = "",
    follow: Annotated[
        bool, typer.Option("--follow/--once", help="Go on while files change, or end when all is warm.")
    ] = False,
    model: Annotated[
        str, typer.Option(help="Name, folder or hub id of the model, where the server calls it otherwise.")
    ] = "",
    api_key: ApiKey = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print progress as JSON, one object a line.")
    ] = False,
    learn_budget: Annotated[
        str,
        typer.Option(help="With --follow: most bytes learned from traffic. Needs the server's worker key."),
    ] = "0",
) -> None:
    """Compute the entries of PATH's files in a running server, when its agents leave it time."""
    from agentcache.cli.warm_output import Lines, live_view

    shown: AbstractContextManager[View] = nullcontext(Lines(as_json)) if as_json else live_view()
    with shown as view:
        run(path, engine_url, api_key, model, budget, follow, view, learn_budget)


def run(
    path: Path,
    engine_url: str,
    api_key: str,
    model: str,
    budget: str,
    follow: bool,
    view: View,
    learn_budget: str = "0",
) -> None:
    """Index PATH and warm it in the server. Ctrl-C and SIGTERM end `follow`. Raises AgentCacheError."""
    import signal

    from agentcache.engine_client import EngineClient
    from agentcache.indexer import Index
    from agentcache.learn.attach import learn_from_traffic
    from agentcache.store.units import parse_bytes
    from agentcache.warm.engine import RemoteEngine
    from agentcache.warm.remote import streams_of
    from agentcache.warm.warmer import Warmer

    budget_bytes = parse_bytes(budget) if budget else None
    with Index.open(path) as index, EngineClient(engine_url, api_key or None) as client:
        engine = RemoteEngine(client)
        streams = streams_of(client, engine.model, model)
        index.update(changes=False)
        warmer = Warmer(
            engine,
            [index],
            streams,
            budget_bytes=budget_bytes,
            on_progress=view.show,
            on_status=view.say,
        )
        if follow and (learn_bytes := parse_bytes(learn_budget)):
            learn_from_traffic(warmer, engine, client, [index], streams, learn_bytes, view.say)
        previous = signal.signal(signal.SIGTERM, lambda *_: warmer.stop())
        try:
            if follow:
                warmer.run()
            else:
                warmer.run_once()
        except KeyboardInterrupt:
            if not follow:
                raise
        finally:
            signal.signal(signal.SIGTERM, previous)
        view.end(warmer.progress)
