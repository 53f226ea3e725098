"""Commands that pass on what stands behind `--`."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand

_META = "agentcache.passed_on"


class PassingCommand(TyperCommand):
    """Keeps the arguments behind the first `--` out of its own: `passed_on` has them. A command's list of paths would
    take them otherwise."""

    def parse_args(
        self, ctx: Any, args: list[str]
    ) -> list[str]:  # click's context, or that of typer's copy of click
        if "--" in args:
            at = args.index("--")
            ctx.meta[_META] = tuple(args[at + 1 :])
            args = args[:at]
        rest: list[str] = super().parse_args(ctx, args)
        return rest


def passed_on(context: typer.Context) -> tuple[str, ...]:
    """The arguments behind `--`."""
    given: tuple[str, ...] = context.meta.get(_META, ())
    return given
