"""`ronde bench`: how fast ronde is on this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from ronde.bench import data_parallel, overhead
from ronde.bench.pairs import Pair
from ronde.bench.report import Report, data_parallel_table, overhead_table
from ronde.errors import UsageError

__all__ = ["bench"]

bench = typer.Typer(help="Measure against hand-written PyTorch.", no_args_is_help=True, rich_markup_mode=None)

_Pairs = Annotated[int, typer.Option(min=1, help="Alternating pairs of runs for each workload.")]
_Steps = Annotated[
    int | None, typer.Option(min=1, help="Timed steps of a run, instead of the workload's own number.")
]
_Json = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write every sample and the machine to FILE.")
]


@bench.command()
def dp(
    workloads: Annotated[
        str, typer.Option(metavar="NAMES", help=f"Separated by commas: {', '.join(data_parallel.WORKLOADS)}.")
    ] = ",".join(data_parallel.WORKLOADS),
    ranks: Annotated[int, typer.Option(min=2, help="Ranks of both contenders.")] = 2,
    pairs: _Pairs = 9,
    steps: _Steps = None,
    json: _Json = None,
) -> None:
    """Train the same model as a plain script under ronde and as a DDP script written by hand.

    Both have the same global batch, model, optimizer and threads for each rank. Prints samples/s and
    the ratio ronde over DDP, median and quartiles over the pairs.
    """
    _check_writable(json)
    report = data_parallel.compare(
        workloads.split(","),
        ranks=ranks,
        pairs=pairs,
        steps=steps,
        environment=os.environ,
        progress=lambda name, number, pair: _say(name, number, pairs, pair),
    )
    _write(json, report)
    print(data_parallel_table(report))


@bench.command("overhead")
def overhead_(
    workloads: Annotated[
        str, typer.Option(metavar="NAMES", help=f"Separated by commas: {', '.join(overhead.WORKLOADS)}.")
    ] = ",".join(overhead.WORKLOADS),
    pairs: _Pairs = 9,
    steps: _Steps = None,
    json: _Json = None,
) -> None:
    """Run the same script on one rank under ronde and in plain python.

    Prints what a step takes longer, in microseconds and per cent, and what starting takes longer.
    """
    _check_writable(json)
    report = overhead.compare(
        workloads.split(","),
        pairs=pairs,
        steps=steps,
        environment=os.environ,
        progress=lambda name, number, pair: _say(name, number, pairs, pair),
    )
    _write(json, report)
    print(overhead_table(report))


def _say(name: str, number: int, pairs: int, pair: Pair) -> None:
    ours, peer = pair.ours, pair.peer
    if name == "start-up":
        figures = f"{ours.wall_seconds:.2f} s against {peer.wall_seconds:.2f} s"
    else:
        speeds = f"{ours.samples_per_second:.1f} against {peer.samples_per_second:.1f} samples/s"
        figures = f"{speeds}, ratio {pair.ratio:.3f}"
    print(f"ronde: {name}, pair {number} of {pairs}: {figures}", file=sys.stderr, flush=True)


def _check_writable(path: Path | None) -> None:
    """Say that a report cannot be written before measuring it for minutes, not after."""
    if path is None:
        return
    try:
        path.open("a").close()
    except OSError as error:
        raise UsageError(
            f"cannot write --json {path}: {error.strerror}; give a file in an existing folder"
        ) from None


def _write(path: Path | None, report: Report) -> None:
    if path is not None:
        path.write_text(report.to_json())
