"""`ronde bench`: benchmarks on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

import ronde
from ronde.bench import meshes
from ronde.bench import steps as trainings
from ronde.bench.choice import DEVICES, check_known
from ronde.bench.collectives import cases as contenders
from ronde.bench.collectives import measure as collectives
from ronde.bench.collectives.cases import OPERATIONS, cases, parse_size
from ronde.bench.memory import measure as memory
from ronde.bench.method import METHODS
from ronde.bench.peers import PEERS, choose
from ronde.bench.picture import save
from ronde.bench.reading import read_report
from ronde.bench.report import Report
from ronde.bench.table import table
from ronde.cli.plot_option import check_drawable
from ronde.cluster.devices import device_of_ranks
from ronde.cluster.linux import check_linux
from ronde.errors import UsageError
from ronde.plan import check, expand

__all__ = ["bench"]

bench = typer.Typer(help="Measure against hand-written PyTorch.", no_args_is_help=True, rich_markup_mode=None)

_RUNS = "Runs of each contender, in alternating order."
_Steps = Annotated[
    int | None, typer.Option(min=1, help="Timed steps of a run, instead of the workload's own number.")
]
_Device = Annotated[str, typer.Option(metavar="|".join(DEVICES), help="Where the scripts train.")]
_Json = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write every sample and the machine to FILE.")
]
_Plot = Annotated[
    Path | None, typer.Option("--plot", metavar="FILE", help="Draw the report: a .png, .svg or .pdf.")
]


def _some(known: Iterable[str], lead: str = "", **more: Any) -> Any:
    """Parse an option with a list of known names."""
    return typer.Option(metavar="NAMES", help=f"{lead}Separated by commas: {', '.join(known)}.", **more)


@bench.command()
def dp(  # noqa: PLR0913 - each is an option
    workloads: Annotated[str, _some(trainings.DP_WORKLOADS)] = ",".join(trainings.DP_USUAL),
    against: Annotated[str, _some(PEERS, "Peers. ")] = "ddp",
    ranks: Annotated[int, typer.Option(min=1, help="Ranks of every contender.")] = 2,
    plan: Annotated[str, typer.Option("--plan", metavar="PLAN", help="How ronde cuts the work.")] = "ddp",
    method: Annotated[
        str,
        typer.Option(
            metavar="|".join(METHODS),
            help="global: one global batch for any number of ranks. dlperf: as the DLPerf project measures, "
            "one batch per rank, 20 steps ignored, 100 timed, 7 runs.",
        ),
    ] = "global",
    pairs: Annotated[int | None, typer.Option(min=1, help=_RUNS, show_default="9; 7 with dlperf")] = None,
    steps: _Steps = None,
    json: _Json = None,
    plot: _Plot = None,
) -> None:
    """Train a model by a plain script under ronde and by other libraries.

    All have the same global batch, model, optimizer and threads for each rank. Prints samples/s and
    the ratio ronde over each peer: of the medians, and median and quartiles of the pairs.
    """
    check_known([method], METHODS, what="method")
    peers = choose(_names(against))
    check(expand(plan), ranks, device_of_ranks(os.environ))
    _check_before(json, plot)
    report = trainings.compare_data_parallel(
        _names(workloads), against=peers, method=METHODS[method], ranks=ranks, rounds=pairs, steps=steps,
        plan=plan, environment=os.environ, progress=_say,
    )  # fmt: skip
    _show(report, json, plot)


@bench.command()
def overhead(
    workloads: Annotated[str, _some(trainings.OVERHEAD_WORKLOADS)] = ",".join(trainings.OVERHEAD_USUAL),
    device: _Device = "cpu",
    pairs: Annotated[int, typer.Option(min=1, help=_RUNS)] = 9,
    steps: _Steps = None,
    json: _Json = None,
    plot: _Plot = None,
) -> None:
    """Run a script under ronde, in plain python and under torchrun.

    Prints the added time of a step, in microseconds and per cent, and of the start.
    """
    _check_before(json, plot)
    report = trainings.compare_overhead(
        _names(workloads), device=device, rounds=pairs, steps=steps, environment=os.environ, progress=_say
    )
    _show(report, json, plot)


@bench.command("collectives")
def collectives_(
    operations: Annotated[str, _some(OPERATIONS)] = ",".join(OPERATIONS),
    sizes: Annotated[
        str,
        typer.Option("--sizes", metavar="SIZES", help="Of the larger of a rank's two tensors: 4KB, 1.5MiB."),
    ] = "4KB,256KB,4MB,102MB",
    algorithms: Annotated[str, _some(contenders.OURS, "Of ronde. ")] = ",".join(contenders.OURS),
    against: Annotated[
        str | None,
        _some(contenders.PEERS, "Peers. ", show_default="those that are installed"),
    ] = None,
    ranks: Annotated[int, typer.Option(min=1, help="Ranks of every contender, on this host.")] = 2,
    pairs: Annotated[
        int, typer.Option(min=1, help="Samples of each contender at each size, in alternating order.")
    ] = 9,
    json: _Json = None,
    plot: _Plot = None,
) -> None:
    """Exchange tensors of some sizes among ranks by ronde's algorithms and by other libraries.

    Every contender has its own ranks, which sleep while another is measured. Results are checked. Prints
    the time of a call and the ratio peer over ronde: of the medians, and median and quartiles of the pairs.
    """
    check_known(_names(operations), OPERATIONS, what="operation")
    ours = contenders.choose(_names(algorithms), contenders.OURS, what="algorithm")
    asked = None if against is None else contenders.choose(_names(against), contenders.PEERS, what="peer")
    peers, missing = collectives.peers_or_missing(asked)
    chosen = cases(_names(operations), [parse_size(size) for size in _names(sizes)])
    _check_before(json, plot)
    report = collectives.compare(
        chosen,
        [*ours, *peers],
        ranks=ranks,
        rounds=pairs,
        missing=missing,
        environment=os.environ,
        progress=_say,
    )
    _show(report, json, plot)


@bench.command("memory")
def memory_(
    workload: Annotated[
        str, typer.Option(metavar="NAME", help=f"One of {', '.join(memory.WORKLOADS)}.")
    ] = "transformer",
    plans: Annotated[
        str,
        typer.Option(
            "--plans",
            metavar="PLANS",
            help="Presets or single items, as recompute=full, separated by commas.",
            show_default="all places of state",
        ),
    ] = "",
    ranks: Annotated[int, typer.Option(min=1, help="Ranks under every plan.")] = 2,
    device: _Device = "cpu",
    json: _Json = None,
    plot: _Plot = None,
) -> None:
    """Train a model under each plan and count the bytes of every rank.

    Prints parameters, gradients and optimizer state beside the formula of the plan, and
    buckets, activations and the peak of the process. Where a plan says how to compute (micro-batches,
    recompute, precision), activations have a formula beside them too.
    """
    _check_before(json, plot)
    chosen = _names(plans) if plans else memory.plans_with_formulas()
    report = memory.compare(
        workload, chosen, ranks=ranks, device=device, environment=os.environ, progress=_say
    )
    _show(report, json, plot)


@bench.command("parallel")
def parallel_(  # noqa: PLR0913 - its options
    workload: Annotated[
        str, typer.Option(metavar="NAME", help=f"One of {', '.join(meshes.WORKLOADS)}.")
    ] = "transformer-512",
    plans: Annotated[
        str,
        typer.Option("--plans", metavar="PLANS", help="Separated by semicolons.", show_default="all meshes"),
    ] = "",
    micro_batches: Annotated[
        str, typer.Option(metavar="LIST", help="Of a pipeline that names none, separated by commas.")
    ] = "4,8",
    ranks: Annotated[int, typer.Option(min=2, help="Ranks of every plan, with one thread each.")] = 4,
    scale: Annotated[int, typer.Option(min=1, help="How many of the workload's batches make one.")] = 1,
    pairs: Annotated[int, typer.Option(min=1, help=_RUNS)] = 3,
    steps: _Steps = None,
    json: _Json = None,
    plot: _Plot = None,
) -> None:
    """Train a model under each mesh of `--ranks` ranks, and in one process.

    Prints the time of a step, as a part of one process's and of the ideal (an equal share, and a pipeline's
    bubble), the most memory and bytes of a rank, and how long it waits.
    """
    _check_before(json, plot)
    numbers = _numbers("--micro-batches", micro_batches)
    report = meshes.measure(
        workload,
        meshes.in_micro_batches(plans.split(";"), numbers) if plans else meshes.meshes(ranks, numbers),
        ranks=ranks, rounds=pairs, scale=scale, steps=steps, environment=os.environ, progress=_say,
    )  # fmt: skip
    _show(report, json, plot)


@bench.command()
def show(
    report: Annotated[Path, typer.Argument(metavar="FILE", help="What --json has written.")],
    plot: _Plot = None,
) -> None:
    """Print the table of a report once more, or draw it."""
    _check_writable("--plot", plot)
    try:
        text = report.read_text()
    except OSError as error:
        raise UsageError(f"cannot read {report}: {error.strerror}; give a file of --json [R850]") from None
    _show(read_report(text), None, plot)


def _moved(name: str) -> None:
    """Register the old name of a command that is in the checkout's `benchmarks` now."""
    module = f"benchmarks.{name.replace('-', '_')}"

    def run(context: typer.Context) -> None:
        checkout = Path(ronde.__file__).parents[2]
        if not (checkout / "benchmarks").exists():
            raise UsageError(
                f"ronde bench {name} is now python -m {module}, which the wheel does not have; "
                "run it in a checkout of ronde's repository [R850]"
            )
        print(f"ronde: ronde bench {name} is deprecated; use python -m {module}", file=sys.stderr)
        path = os.pathsep.join(filter(None, (str(checkout), os.environ.get("PYTHONPATH"))))
        command = (sys.executable, "-m", module, *context.args)
        raise typer.Exit(subprocess.run(command, env={**os.environ, "PYTHONPATH": path}).returncode)

    any_words = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
    bench.command(name, hidden=True, context_settings=any_words)(run)


for _name in ("chaos", "first-call", "horovod", "planner", "servers", "serving", "sync", "tables"):
    _moved(_name)


def _say(line: str) -> None:
    print(f"ronde: {line}", file=sys.stderr, flush=True)


def _names(separated: str) -> list[str]:
    return [name.strip() for name in separated.split(",")]


def _numbers(option: str, text: str) -> list[int]:
    try:
        numbers = [int(each) for each in _names(text)]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise UsageError(f"{option} {text}: whole numbers above 0 are needed, separated by commas [R850]")
    return numbers


def _check_before(json: Path | None, plot: Path | None) -> None:
    """Refuse a host or files before minutes of measuring, not after."""
    check_linux()
    _check_writable("--json", json)
    _check_writable("--plot", plot)


def _check_writable(option: str, path: Path | None) -> None:
    if path is None:
        return
    if option == "--plot":
        check_drawable(path)
    try:
        path.open("a").close()
    except OSError as error:
        raise UsageError(
            f"cannot write {option} {path}: {error.strerror}; give a file in an existing folder [R800]"
        ) from None


def _show(report: Report, json: Path | None, plot: Path | None) -> None:
    if json is not None:
        json.write_text(report.to_json())
    if plot is not None:
        save(report, plot)
    print(table(report))
