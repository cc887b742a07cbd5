"""`ronde plan`: meaning of a plan, and search for one."""

from __future__ import annotations

from typing import Annotated

import typer

from ronde.cli.plan_search import search
from ronde.errors import UsageError
from ronde.plan import Plan, check, expand
from ronde.plan.describe import Description, describe
from ronde.plan.grammar import aliases_in

__all__ = ["plan"]

plan = typer.Typer(
    help="Show the meaning of a plan, or search for one.", no_args_is_help=True, rich_markup_mode=None
)
# Options of the script follow it.
plan.command(context_settings={"allow_interspersed_args": False})(search)


@plan.callback()
def _subcommands() -> None:
    """Show the meaning of a plan, or search for one."""


@plan.command()
def show(
    items: Annotated[
        str | None, typer.Argument(metavar="PLAN", help="Presets and key=value items, separated by commas.")
    ] = None,
    ranks: Annotated[int | None, typer.Option(min=1, help="Number of ranks to show it for.")] = None,
    file: Annotated[
        str | None, typer.Option("--plan", metavar="FILE.toml", help="Read items from a file.")
    ] = None,
    script: Annotated[
        str | None,
        typer.Option(
            "--script",
            metavar="SCRIPT",
            help="List the parts of this script's first model that the plan cuts.",
        ),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="List the strategies that carry it out, in order.")
    ] = False,
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGUMENTS]...", help="Arguments of the script, after --.")
    ] = None,
) -> None:
    """Print the expanded plan: update rule, exactness, equal systems.

    A plan that this version cannot run is refused with exit code 2. A script of
    which the cuts are to be listed runs up to its model's first call, in this process.
    """
    sources = [source for source in (file, items) if source is not None]
    if not sources:
        raise UsageError("no plan given; write one, such as: ronde plan show ddp [R217]")
    if arguments and script is None:
        raise UsageError(
            f"{arguments[0]} is for a script, and none is given; add --script SCRIPT, or leave it out [R230]"
        )
    described = expand(*sources)
    check(described, ranks)
    print(_page(describe(described, ranks), aliases_in(*sources), verbose=verbose))
    if script is not None:
        _list_cuts(script, arguments or [], described)


def _list_cuts(script: str, arguments: list[str], described: Plan) -> None:
    if described.mesh.tensor == described.mesh.pipeline == described.mesh.expert == 1:
        raise UsageError(
            "--script lists what tensor=N, pipeline=N or expert=N cuts, and this plan has none of them; add "
            "one [R229]"
        )
    from ronde.runtime.structure import lines_of_cuts, model_of_script

    model, counts = model_of_script(script, arguments)
    print(f"\n{type(model).__name__}")
    print("\n".join(lines_of_cuts(model, described, counts)))


def _page(description: Description, aliases: tuple[str, ...], *, verbose: bool) -> str:
    """Format the description as two columns of plain text."""
    rows = [("plan", description.plan)]
    rows += [("names", ", ".join(aliases))] if aliases else []
    rows.append(("preset", ", ".join(description.presets) or "none"))
    rows += [(name, "  ".join(items)) for name, items in description.axes]
    rows += [("gradients", description.algorithm), ("holds", description.holds)]
    rows += [("schedule", description.schedule)] if description.schedule else []
    rows += [("update rule", description.update_rule)]
    rows += [("exact", f"{'yes' if description.exact else 'no'}: {description.exactness}")]
    rows += [("equals", "\n".join(description.equals) or "no system known to us")]
    if verbose:
        rows += [("strategies", "\n".join(description.strategies) or "none")]
    width = max(len(name) for name, _ in rows) + 2
    return "\n".join(name.ljust(width) + text.replace("\n", "\n" + " " * width) for name, text in rows)
