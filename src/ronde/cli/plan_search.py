"""`ronde plan search`: plans that fit, ranked by predicted speed."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ronde.cli.plot_option import check_drawable
from ronde.cli.script_check import check_script
from ronde.errors import UsageError
from ronde.plan import expand
from ronde.plan.grammar import items_of_source, settle

if TYPE_CHECKING:
    from ronde.planner.answer import Answer
    from ronde.planner.cluster import Cluster
    from ronde.planner.graph import CostGraph
    from ronde.planner.training import Budget

__all__ = ["search"]

# The first micro-batches that a picture shows.
_SHOWN = 8


def search(  # noqa: PLR0913 - each is an option
    script: Annotated[
        str | None, typer.Argument(metavar="SCRIPT", help="Script to trace; nothing is trained.")
    ] = None,
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGS]...", help="Arguments of the script.")
    ] = None,
    cluster: Annotated[
        str, typer.Option(metavar="FILE|PRESET", help="Cluster: a .toml file, a preset, or this-host.")
    ] = "this-host",
    devices: Annotated[
        int | None, typer.Option(min=1, help="Number of devices.", show_default="the cluster's")
    ] = None,
    plan: Annotated[
        str | None, typer.Option("--plan", metavar="PLAN", help="Items that every plan must have.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Number of plans to show.")] = 10,
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE.toml", help="Sizes of a transformer, in place of a script."),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Samples of a global batch, in place of the model's own.")
    ] = None,
    calibrate: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="RUN_DIR",
            help="Run of the script whose measured steps scale predictions; a second one, with other "
            "micro-batches or ranks, tells the host's time from the device's.",
        ),
    ] = None,
    real_step: Annotated[
        bool, typer.Option("--real-step", help="Run one step of the script on real tensors.")
    ] = False,
    allow_inexact: Annotated[bool, typer.Option("--allow-inexact", help="Rank inexact plans, too.")] = False,
    tokens: Annotated[
        float | None,
        typer.Option(
            min=1, metavar="N", help="Tokens of the whole training (samples of a script): its time and price."
        ),
    ] = None,
    deadline: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Time that the training may take, as 36h or 14d; needs --tokens."),
    ] = None,
    price_per_hour: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="PRICE", help="Price of a device for an hour.", show_default="the cluster's"
        ),
    ] = None,
    json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the answer to FILE.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw it: a .png, .svg or .pdf.")
    ] = None,
) -> None:
    """Rank plans for a script or model: time, memory, bottleneck of each.

    The script is run on tensors without data until its second optimizer step. Exit code 1 where no plan fits,
    or none ends by the deadline.
    """
    from ronde.planner.report import report
    from ronde.planner.search import search as searched

    if (script is None) == (model is None):
        raise UsageError("give a script or --model NAME, one of them; as: ronde plan search train.py [R800]")
    if plot is not None:
        check_drawable(plot)
    if script is not None:
        check_script(script)
    where = _cluster(cluster, devices)
    graph = _graph(script, arguments or [], model, batch, real_step)
    items = [] if plan is None else list(items_of_source(plan))
    base = expand(*(() if plan is None else (plan,)))
    keys = set(settle(items))
    if model is not None and "precision" not in keys:
        peaks = where.slowest.peak
        narrow = next((name for name in ("bf16", "fp16") if name in peaks), "fp32")
        base = dataclasses.replace(base, compute=dataclasses.replace(base.compute, precision=narrow))
    if calibrate:
        from ronde.planner.calibration import calibrated

        where = calibrated(where, graph, calibrate)
    budget = _budget(graph, where, tokens, deadline, price_per_hour)
    answer = searched(graph, where, base, keys=keys, top=top, allow_inexact=allow_inexact, budget=budget)
    if json is not None:
        _write(json, answer.to_json())
    if plot is not None:
        _draw(answer, graph, where, plot)
    print(report(answer))
    raise typer.Exit(0 if answer.choices and answer.in_time is None else 1)


def _budget(
    graph: CostGraph, where: Cluster, tokens: float | None, deadline: str | None, price: float | None
) -> Budget | None:
    from ronde.planner.training import Budget

    if tokens is None:
        if deadline is not None or price is not None:
            raise UsageError(
                "--deadline and --price-per-hour need the length of a training; add --tokens N [R800]"
            )
        return None
    return Budget(
        samples=tokens / graph.tokens,
        deadline=None if deadline is None else _seconds(deadline),
        price=where.price if price is None else price,
    )


def _seconds(text: str) -> float:
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([mhd])", text)
    if not found:
        raise UsageError(f"--deadline is {text!r}; give minutes, hours or days, as 90m, 36h or 14d [R800]")
    return float(found[1]) * {"m": 60, "h": 3600, "d": 86400}[found[2]]


def _cluster(source: str, devices: int | None) -> Cluster:
    from ronde.planner.cluster_file import THIS_HOST, read_cluster

    if source == THIS_HOST:
        from ronde.planner.this_host import measured_host

        found = measured_host(devices)
    else:
        found = read_cluster(source)
    return found if devices is None else found.resized(devices)


def _graph(
    script: str | None, arguments: list[str], model: str | None, batch: int | None, real: bool
) -> CostGraph:
    if model is not None:
        from ronde.planner.transformer import read_model, transformer_graph

        sizes = read_model(model)
        return transformer_graph(sizes if batch is None else dataclasses.replace(sizes, batch=batch))
    from ronde.planner.traced import traced

    assert script is not None
    graph = traced(script, arguments, real=real)
    return graph if batch is None else dataclasses.replace(graph, batch=batch)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise UsageError(
            f"cannot write --json {path}: {error.strerror}; give a file in an existing folder [R800]"
        ) from None


def _draw(answer: Answer, graph: CostGraph, where: Cluster, path: Path) -> None:
    from ronde.planner.drawing import timeline_of_best
    from ronde.planner.picture import save

    timeline = timeline_of_best(answer, graph, where, _SHOWN) if answer.choices else None
    save(answer, timeline, path)
