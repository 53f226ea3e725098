"""`agentcache trace`: made-up traffic of the shapes that agents send, from any Python repository."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

_Path = Annotated[Path, typer.Argument(metavar="PATH", help="A Python repository.")]
_Out = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write here, compressed if it ends with .gz; else printed."),
]
_Seed = Annotated[int, typer.Option(help="The same seed makes the same trace.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Make traces: repoagent, agent.", no_args_is_help=True)
    group.command()(repoagent)
    group.command()(agent)
    app.add_typer(group, name="trace")


def repoagent(
    path: _Path,
    out: _Out = None,
    answer_words: Annotated[int, typer.Option(min=20, help="Length of the answers, on average.")] = 110,
    sessions: Annotated[int, typer.Option(min=1, help="How many times everything is documented.")] = 1,
    edits: Annotated[int, typer.Option(min=0, help="Functions changed between two sessions.")] = 0,
    seed: _Seed = 1,
) -> None:
    """Requests as RepoAgent sends them to document PATH: children and callees first."""
    from agentcache.traces.repoagent import RepoAgentOptions, repoagent_trace
    from agentcache.traces.sources import read_sources

    options = RepoAgentOptions(answer_words, sessions, edits, seed)
    _write(repoagent_trace(read_sources(path), options), out)


def agent(
    path: _Path,
    out: _Out = None,
    client: Annotated[
        str,
        typer.Option(help="Whose shapes: generic, opencode, claude-code, qwen-code, codex, mini-swe-agent."),
    ] = "generic",
    sessions: Annotated[int, typer.Option(min=1, help="Sessions, changing and explaining by turns.")] = 2,
    sub_agents: Annotated[int, typer.Option(min=0, help="Sub-agents that each session starts.")] = 0,
    tests: Annotated[bool, typer.Option(help="Run the tests after an edit.")] = True,
    seed: _Seed = 1,
) -> None:
    """Coding sessions on PATH: read, grep, edit, test, read again."""
    from agentcache.errors import UsageError
    from agentcache.traces.agent import AgentOptions, agent_trace
    from agentcache.traces.clients import CLIENTS
    from agentcache.traces.sources import read_sources

    if client not in CLIENTS:
        raise UsageError(f"no client is called {client!r}; known: {', '.join(CLIENTS)}")
    options = AgentOptions(client, sessions, sub_agents, tests, seed)
    _write(agent_trace(read_sources(path), options), out)


def _write(lines: Iterable[dict[str, Any]], out: Path | None) -> None:
    import gzip
    import json

    from agentcache.errors import UsageError

    if out is None:
        for line in lines:
            typer.echo(json.dumps(line))
        return
    count = 0
    try:
        with gzip.open(out, "wt") if out.suffix == ".gz" else out.open("w") as file:
            for line in lines:
                file.write(json.dumps(line) + "\n")
                count += 1
    except OSError as error:
        raise UsageError(f"the trace cannot be written to {out}: {error.strerror}") from error
    typer.echo(f"{count} requests written to {out}", err=True)
