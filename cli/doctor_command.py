"""`agentcache doctor`."""

from __future__ import annotations

import json
import signal
from dataclasses import asdict
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": False})(doctor)


def doctor(
    context: typer.Context,
    model: Annotated[
        str, typer.Option(help="Name, folder or hub id of the model to try; '' looks at the machine only.")
    ] = "smollm2-135m",
    boundary_tokens: Annotated[int, typer.Option(help="Most tokens recomputed at a seam.", min=0)] = 16,
    kv_space: Annotated[int, typer.Option(help="vLLM's page pool on CPU, GiB.", min=1)] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, last line.")] = False,
) -> None:
    """Look at the machine, start MODEL, and have it try blending against its own full prefill.

    Arguments after `--` go to vLLM. Exit code 1 if anything that is needed is missing or fails.
    """
    from rich.console import Console
    from rich.markup import escape

    from agentcache.doctor import Finding, machine, try_model
    from agentcache.engine import split_extra
    from agentcache.settings import EngineSettings

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console(stderr=as_json)
    findings: list[Finding] = []

    def tell(finding: Finding) -> None:
        findings.append(finding)
        sign = {True: "[green]ok[/]  ", False: "[red]FAIL[/]", None: "    "}[finding.ok]
        advice = f"  ({finding.advice})" if finding.ok is False and finding.advice else ""
        told = escape(f"{finding.name}: {finding.found}{advice}")
        console.print(f"{sign} {told}", highlight=False, soft_wrap=True)

    for finding in machine():
        tell(finding)
    if model:
        if all(finding.ok is not False for finding in findings):
            console.print(f"     starting {model} and trying it (about a minute)")
            settings = EngineSettings(boundary_tokens=boundary_tokens)
            for finding in try_model(model, settings, kv_space, split_extra(context.args)):
                tell(finding)
        else:
            console.print("     the model was not tried")
    healthy = all(finding.ok is not False for finding in findings)
    console.print("verdict: " + ("all is well" if healthy else "something needs attention, see FAIL above"))
    if as_json:
        typer.echo(json.dumps({"ok": healthy, "findings": [asdict(finding) for finding in findings]}))
    raise typer.Exit(0 if healthy else 1)
