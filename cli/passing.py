"""Commands that pass on what stands behind `--`."""

from __future__ import annotations

import click
from typer.core import TyperCommand

_META = "agentcache.passed_on"


class PassingCommand(TyperCommand):
    """Keeps the arguments behind the first `--` out of its own: `passed_on` has them. A command's list of paths would
    take them otherwise."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta[_META] = tuple(args[at + 1 :])
            args = args[:at]
        return super().parse_args(ctx, args)


def passed_on(context: click.Context) -> tuple[str, ...]:
    """The arguments behind `--`."""
    given: tuple[str, ...] = context.meta.get(_META, ())
    return given
