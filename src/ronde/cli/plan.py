"""`ronde plan`: what a plan means, and which to take."""

from __future__ import annotations

from typing import Annotated

import typer

from ronde.cli.plan_search import search
from ronde.errors import UsageError
from ronde.plan import Description, check, describe, expand, validate
from ronde.plan.validate import contradictions

__all__ = ["plan"]

plan = typer.Typer(help="Show what a plan means, or find one.", no_args_is_help=True, rich_markup_mode=None)
# The script's own options go behind it.
plan.command(context_settings={"allow_interspersed_args": False})(search)


@plan.callback()
def _subcommands() -> None:
    """Show what a plan means, or find one."""


@plan.command()
def show(
    items: Annotated[
        str | None, typer.Argument(metavar="PLAN", help="Presets and key=value items, separated by commas.")
    ] = None,
    ranks: Annotated[int | None, typer.Option(min=1, help="Number of ranks to show it for.")] = None,
    file: Annotated[
        str | None, typer.Option("--plan", metavar="FILE.toml", help="Read items from a file.")
    ] = None,
) -> None:
    """Print the expanded plan, its update rule, whether it is exact, and the systems it equals.

    A plan that this version cannot run is printed too, and refused with exit code 2. One that contradicts
    itself is refused only: there is nothing that it means.
    """
    sources = [source for source in (file, items) if source is not None]
    if not sources:
        raise UsageError("no plan given; write one, such as: ronde plan show ddp")
    described = expand(*sources)
    if contradictions(described, ranks):
        check(described, ranks)
    print(_page(describe(described, ranks), available=not validate(described, ranks)))
    check(described, ranks)


def _page(description: Description, *, available: bool) -> str:
    """The description as two columns of plain text."""
    rows = [("plan", description.plan)]
    if not available:
        rows.append(("available", "not in this version"))
    rows.append(("preset", ", ".join(description.presets) or "none"))
    rows += [(name, "  ".join(items)) for name, items in description.axes]
    rows += [("gradients", description.algorithm), ("holds", description.holds)]
    rows += [("update rule", description.update_rule)]
    rows += [("exact", f"{'yes' if description.exact else 'no'}: {description.exactness}")]
    rows += [("equals", "\n".join(description.equals) or "no system known to us")]
    width = max(len(name) for name, _ in rows) + 2
    return "\n".join(name.ljust(width) + text.replace("\n", "\n" + " " * width) for name, text in rows)
