"""`ronde bench`: how fast ronde is on this machine."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

import ronde
from ronde.bench import data_parallel, overhead, servers, tables
from ronde.bench import first_call as first_calls
from ronde.bench import horovod as horovods
from ronde.bench.choice import DEVICES, check_known
from ronde.bench.collectives import contender as contenders
from ronde.bench.collectives import picture as collectives_picture
from ronde.bench.collectives import table as collectives_table
from ronde.bench.collectives.comparison import compare as compare_collectives
from ronde.bench.collectives.comparison import peers_or_missing
from ronde.bench.collectives.contender import CONTENDERS
from ronde.bench.collectives.operation import OPERATIONS, cases
from ronde.bench.collectives.report import CollectivesReport, Result
from ronde.bench.collectives.size import parse_size
from ronde.bench.first_call import FirstCall, FirstCallReport
from ronde.bench.horovod import HorovodReport
from ronde.bench.kinds import AnyReport, read_report
from ronde.bench.memory import comparison as memory_comparison
from ronde.bench.memory import picture as memory_picture
from ronde.bench.memory import table as memory_table
from ronde.bench.memory.report import MemoryReport, PlanMemory
from ronde.bench.method import METHODS
from ronde.bench.parallel import measure as meshes
from ronde.bench.parallel import picture as parallel_picture
from ronde.bench.parallel import report as parallel_report
from ronde.bench.parallel.report import ParallelReport
from ronde.bench.peers import PEERS, choose
from ronde.bench.picture import save
from ronde.bench.push_pull.measure import push_and_pull
from ronde.bench.report import Report
from ronde.bench.rounds import OURS, Round
from ronde.bench.servers import Figures, ServersReport
from ronde.bench.serving import measure as servings
from ronde.bench.serving import report as serving_report
from ronde.bench.serving.report import ServingReport
from ronde.bench.sync import picture as sync_picture
from ronde.bench.sync import report as sync_reports
from ronde.bench.sync.contender import CONTENDERS as WAYS
from ronde.bench.sync.report import SyncReport
from ronde.bench.table import table
from ronde.bench.tables import TableFigures, TablesReport
from ronde.cli.bench_sync import PLACES, sync_report
from ronde.cli.plot_option import check_drawable
from ronde.cluster.devices import device_of_ranks
from ronde.cluster.linux import check_linux
from ronde.errors import UsageError
from ronde.plan import check, expand
from ronde.trace.memory import show_bytes

__all__ = ["bench"]

bench = typer.Typer(help="Measure against hand-written PyTorch.", no_args_is_help=True, rich_markup_mode=None)

_ANY_WORDS = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
_RUNS = "Runs of each contender, in alternating order."
_Steps = Annotated[
    int | None, typer.Option(min=1, help="Timed steps of a run, instead of the workload's own number.")
]
_Json = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write every sample and the machine to FILE.")
]
_Plot = Annotated[
    Path | None, typer.Option("--plot", metavar="FILE", help="Draw the report: a .png, .svg or .pdf.")
]


@bench.command()
def dp(  # noqa: PLR0913 - each is an option
    workloads: Annotated[
        str, typer.Option(metavar="NAMES", help=f"Separated by commas: {', '.join(data_parallel.WORKLOADS)}.")
    ] = ",".join(data_parallel.USUAL),
    against: Annotated[
        str, typer.Option(metavar="NAMES", help=f"Peers, separated by commas: {', '.join(PEERS)}.")
    ] = "ddp",
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
    """Train one model under ronde and as scripts written for other libraries.

    Under ronde it is a plain script. All have the same global batch, model, optimizer and threads for each
    rank. Prints samples/s and the ratio ronde over each peer: of the medians, and median and quartiles of the
    pairs.
    """
    check_linux()
    check_known([method], METHODS, what="method")
    peers = choose(_names(against))
    check(expand(plan), ranks, device_of_ranks(os.environ))
    _check_writable(json=json, plot=plot)
    report = data_parallel.compare(
        _names(workloads),
        against=peers,
        method=METHODS[method],
        ranks=ranks,
        rounds=pairs,
        steps=steps,
        plan=plan,
        environment=os.environ,
        progress=_say,
    )
    _tell(report, json=json, plot=plot)


@bench.command("overhead")
def overhead_(
    workloads: Annotated[
        str, typer.Option(metavar="NAMES", help=f"Separated by commas: {', '.join(overhead.WORKLOADS)}.")
    ] = ",".join(overhead.USUAL),
    device: Annotated[str, typer.Option(metavar="|".join(DEVICES), help="Where the scripts train.")] = "cpu",
    pairs: Annotated[int, typer.Option(min=1, help=_RUNS)] = 9,
    steps: _Steps = None,
    json: _Json = None,
    plot: _Plot = None,
) -> None:
    """Measure ronde's overhead on one rank against plain python, on two against torchrun.

    Prints the extra time of a step, in microseconds and per cent, and the extra time of starting.
    """
    check_linux()
    _check_writable(json=json, plot=plot)
    report = overhead.compare(
        _names(workloads),
        device=device,
        rounds=pairs,
        steps=steps,
        environment=os.environ,
        progress=_say,
    )
    _tell(report, json=json, plot=plot)


@bench.command("first-call")
def first_call_(
    workloads: Annotated[
        str, typer.Option(metavar="NAMES", help=f"Separated by commas: {', '.join(first_calls.WORKLOADS)}.")
    ] = ",".join(first_calls.USUAL),
    ranks: Annotated[int, typer.Option(min=2, help="Ranks.")] = 2,
    plan: Annotated[str, typer.Option("--plan", metavar="PLAN", help="How ronde cuts the work.")] = "ddp",
    json: _Json = None,
) -> None:
    """Measure a model's observed first call beside a step of its training.

    Prints the time of the call in steps, the memory of the first step over a usual one's, and the share that
    observed and compared calls take of 200 steps.
    """
    check_linux()
    check(expand(plan), ranks, device_of_ranks(os.environ))
    _check_writable(json=json)
    report = first_calls.measure(
        _names(workloads), ranks=ranks, plan=plan, environment=os.environ, progress=_say_first_call
    )
    _tell(report, json=json)


@bench.command("tables")
def tables_(
    ids: Annotated[int, typer.Option(min=1000, help="Rows of each table.")] = 10_000_000,
    dims: Annotated[
        str, typer.Option(metavar="LIST", help="Floats of a row, separated by commas.")
    ] = "16,64",
    rounds: Annotated[int, typer.Option(min=1, help="Of each measurement.")] = 9,
    json: _Json = None,
) -> None:
    """Measure an embedding table on one core: look-ups and updates.

    Beside it stands a gather from a dense array. Ids are uniform, and distributed as clicks are (Zipf, 1.05).
    Updates are row-wise Adagrad's, equal ids added before.
    """
    check_linux()
    _check_writable(json=json)
    report = tables.measure(ids=ids, dims=_numbers("--dims", dims), rounds=rounds, progress=_say_table)
    _tell(report, json=json)


@bench.command("sync")
def sync_(  # noqa: PLR0913 - its options
    ways: Annotated[str, typer.Option(help=f"Of: {', '.join(WAYS)}.")] = ",".join(WAYS),
    places: Annotated[str, typer.Option(help=f"Of: {', '.join(PLACES)}.")] = "100mbit,1gbit,host",
    ranks: Annotated[int, typer.Option(min=2, help="One on each host.")] = 2,
    steps: Annotated[int, typer.Option(min=2, help="Timed in the slowest runs; faster ones have more.")] = 16,
    rounds: Annotated[int, typer.Option(min=1, help=_RUNS)] = 3,
    batch_size: Annotated[int, typer.Option(min=2, help="Of all ranks together.")] = 64,
    data: Annotated[
        Path | None, typer.Option(help="Folder of Fashion-MNIST, to train on with --target.")
    ] = None,
    target: Annotated[float | None, typer.Option(help="Accuracy, from 0 to 1, to be reached.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Of --target; 3 unless said.")] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Runs of --target, from seed 0 on; 1 unless said.")
    ] = None,
    json: _Json = None,
    plot: _Plot = None,
) -> None:
    """Measure ways of synchronising between hosts of a slow network, against hand-written DDP.

    Hosts are network namespaces of this machine, joined by links of the rate that is given; that needs root.
    """
    check_linux()
    _check_writable(json=json, plot=plot)
    report = sync_report(
        ways=_names(ways), places=_names(places), ranks=ranks, steps=steps, rounds=rounds,
        batch_size=batch_size, data=data, target=target, epochs=epochs, seeds=seeds,
    )  # fmt: skip
    _tell(report, json=json, plot=plot)


@bench.command("horovod")
def horovod_(
    ranks: Annotated[int, typer.Option(min=2, help="With one thread each.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Of each measurement.")] = 9,
    json: _Json = None,
) -> None:
    """Measure operations of Horovod's interface, beside ronde's own collectives and Gloo's.

    All are timed in turn in the same processes, and each way's result is checked. Steps of scripts are
    timed by `ronde bench dp --against ddp,horovod`.
    """
    check_linux()
    _check_writable(json=json)
    _tell(horovods.measure(ranks=ranks, rounds=rounds, environment=os.environ), json=json)


@bench.command("servers")
def servers_(
    ids: Annotated[int, typer.Option(min=1000, help="Rows of the table.")] = 10_000_000,
    dim: Annotated[int, typer.Option(min=1, help="Floats of a row.")] = 16,
    rounds: Annotated[int, typer.Option(min=1, help="Of each measurement.")] = 9,
    workers: Annotated[int, typer.Option(min=1, help="Of dense values.")] = 1,
    mxnet: Annotated[
        str | None, typer.Option(metavar="PYTHON", help="One with mxnet 1.9.1, to compare dense values with.")
    ] = None,
    json: _Json = None,
) -> None:
    """Measure a parameter server and one worker: row look-ups and gradient pushes.

    Both are on this host. Ids are uniform, and distributed as clicks are (Zipf, 1.05). Beside it stand a
    gather of rows of a dense array by their number, and a copy of as many bytes. Then dense values are pushed
    and pulled by `ronde.KVStore`, and in turn by MXNet's where it is given (pip install mxnet==1.9.1
    "numpy<1.24").
    """
    check_linux()
    _check_writable(json=json)
    report = servers.measure(ids=ids, dim=dim, rounds=rounds, progress=_say_figures)
    dense = push_and_pull(rounds, workers, mxnet, _say_figures)
    report = dataclasses.replace(report, results=(*report.results, *dense))
    _tell(report, json=json)


@bench.command("serving")
def serving_(
    rate: Annotated[float, typer.Option(min=1, help="Requests a second, of 100 ids each.")] = 1000,
    rows: Annotated[int, typer.Option(min=1000, help="Rows of the table, of 16 floats each.")] = 1_000_000,
    seconds: Annotated[float, typer.Option(min=1, help="Of a round.")] = 10,
    rounds: Annotated[int, typer.Option(min=1, help="Beside training, and as many alone.")] = 5,
    interval: Annotated[
        float, typer.Option(metavar="SECONDS", help="Between versions that the training publishes.")
    ] = 1.0,
    json: _Json = None,
) -> None:
    """Measure a replica's look-up times and the age of its rows.

    A training publishes meanwhile. Requests come at a fixed rate from another process, by HTTP, then by the
    binary protocol; their time counts from when they were due.
    """
    check_linux()
    _check_writable(json=json)
    report = servings.measure(
        rate=rate,
        rows=rows,
        seconds=seconds,
        rounds=rounds,
        interval=interval,
        environment=os.environ,
        progress=_say_serving,
    )
    _tell(report, json=json)


@bench.command()
def collectives(
    operations: Annotated[
        str, typer.Option(metavar="NAMES", help=f"Separated by commas: {', '.join(OPERATIONS)}.")
    ] = ",".join(OPERATIONS),
    sizes: Annotated[
        str,
        typer.Option("--sizes", metavar="SIZES", help="Of the larger of a rank's two tensors: 4KB, 1.5MiB."),
    ] = "4KB,256KB,4MB,102MB",
    algorithms: Annotated[
        str,
        typer.Option(metavar="NAMES", help=f"Of ronde, separated by commas: {', '.join(contenders.OURS)}."),
    ] = ",".join(contenders.OURS),
    against: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help=f"Peers, separated by commas: {', '.join(contenders.PEERS)}.",
            show_default="those that are installed",
        ),
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
    peers, missing = peers_or_missing(asked)
    chosen = cases(_names(operations), [parse_size(size) for size in _names(sizes)])
    _check_writable(json=json, plot=plot)
    report = compare_collectives(
        chosen,
        [*ours, *peers],
        ranks=ranks,
        rounds=pairs,
        missing=missing,
        environment=os.environ,
        progress=_say_case,
    )
    _tell(report, json=json, plot=plot)


@bench.command("memory")
def memory_(
    workload: Annotated[
        str, typer.Option(metavar="NAME", help=f"One of {', '.join(memory_comparison.WORKLOADS)}.")
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
    device: Annotated[str, typer.Option(metavar="|".join(DEVICES), help="Where the script trains.")] = "cpu",
    json: _Json = None,
    plot: _Plot = None,
) -> None:
    """Train a model under each plan and count every rank's bytes by kind.

    Prints parameters, gradients and optimizer state beside the formula of the plan, and buckets, activations
    and the peak of the process. Where a plan says how to compute (micro-batches, recompute, precision),
    activations have a formula beside them too.
    """
    check_linux()
    _check_writable(json=json, plot=plot)
    report = memory_comparison.compare(
        workload,
        _names(plans) if plans else memory_comparison.plans_with_formulas(),
        ranks=ranks,
        device=device,
        environment=os.environ,
        progress=_say_memory,
    )
    _tell(report, json=json, plot=plot)


@bench.command("parallel")
def parallel_(  # noqa: PLR0913 - its options
    workload: Annotated[
        str, typer.Option(metavar="NAME", help=f"One of {', '.join(meshes.WORKLOADS)}.")
    ] = "transformer-512",
    plans: Annotated[
        str,
        typer.Option(
            "--plans",
            metavar="PLANS",
            help="Separated by semicolons.",
            show_default="all meshes",
        ),
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
    """Train a model under each mesh of so many ranks, and in one process.

    Prints the time of a step, as a part of one process's and of the ideal (an equal share, and a pipeline's
    bubble), the most memory and bytes of a rank, and how long it waits. The picture is the timeline of a
    step.
    """
    check_linux()
    _check_writable(json=json, plot=plot)
    numbers = _numbers("--micro-batches", micro_batches)
    report = meshes.measure(
        workload,
        meshes.in_micro_batches(plans.split(";"), numbers) if plans else meshes.meshes(ranks, numbers),
        ranks=ranks,
        rounds=pairs,
        scale=scale,
        steps=steps,
        environment=os.environ,
        progress=_say_mesh,
    )
    _tell(report, json=json, plot=plot)


@bench.command("chaos", hidden=True, context_settings=_ANY_WORDS)
def chaos_(context: typer.Context) -> None:
    """Run `python -m benchmarks.chaos`, the name that this command has now."""
    _run_moved("chaos", context.args)


@bench.command("planner", hidden=True, context_settings=_ANY_WORDS)
def planner_(context: typer.Context) -> None:
    """Run `python -m benchmarks.planner`, the name that this command has now."""
    _run_moved("planner", context.args)


@bench.command()
def show(
    report: Annotated[Path, typer.Argument(metavar="FILE", help="What --json has written.")],
    plot: _Plot = None,
) -> None:
    """Print the table of a report once more, or draw it."""
    _check_writable(plot=plot)
    try:
        text = report.read_text()
    except OSError as error:
        raise UsageError(f"cannot read {report}: {error.strerror}; give a file of --json [R850]") from None
    _tell(read_report(text), plot=plot)


def _names(separated: str) -> list[str]:
    return [name.strip() for name in separated.split(",")]


def _say(workload: str, rounds: int, number: int, measured: Round) -> None:
    """One line on stderr for each round."""
    samples = measured.samples
    if workload == "start-up":
        figures = [f"{name} {sample.wall_seconds:.2f} s" for name, sample in samples.items()]
    else:
        ours = samples[OURS].samples_per_second
        figures = [f"{OURS} {ours:.1f} samples/s"]
        figures += [
            f"{name} {sample.samples_per_second:.1f} (ratio {ours / sample.samples_per_second:.3f})"
            for name, sample in samples.items()
            if name != OURS
        ]
    print(f"ronde: {workload}, round {number} of {rounds}: {', '.join(figures)}", file=sys.stderr, flush=True)
    for name, failure in measured.failed.items():
        print(f"ronde: {name} failed in this round and ran once more: {failure}", file=sys.stderr, flush=True)


def _say_case(result: Result) -> None:
    """One line on stderr for each case."""
    figures = [
        f"{CONTENDERS[name].title} {collectives_table.show_time(result.microseconds(name).median)}"
        for name in CONTENDERS
        if name in result.rounds[0]
    ]
    print(f"ronde: {result.case.title}: {', '.join(figures)}", file=sys.stderr, flush=True)


def _say_memory(result: PlanMemory) -> None:
    """One line on stderr for each plan."""
    most = max(memory.state for memory in result.ranks)
    print(f"ronde: {result.plan}: state {show_bytes(most)} on a rank", file=sys.stderr, flush=True)


def _say_table(figures: TableFigures) -> None:
    print(f"ronde: {figures.ids:,} ids of {figures.dim} floats, {figures.spread}: done", file=sys.stderr)


def _say_figures(figures: Figures) -> None:
    print(f"ronde: {figures.what}: done", file=sys.stderr)


def _say_serving(situation: str, p99: float) -> None:
    print(f"ronde: {situation}: p99 {p99:.2f} ms", file=sys.stderr, flush=True)


def _run_moved(name: str, words: list[str]) -> None:
    """Run a command of the checkout by its old name.

    Raises:
        UsageError: the installation is a wheel, which has no benchmarks.
    """
    checkout = Path(ronde.__file__).parents[2]
    if not (checkout / "benchmarks" / name).exists():
        raise UsageError(
            f"ronde bench {name} is now python -m benchmarks.{name}, which the wheel does not have; "
            "run it in a checkout of ronde's repository [R850]"
        )
    print(f"ronde: ronde bench {name} is deprecated; use python -m benchmarks.{name}", file=sys.stderr)
    path = os.pathsep.join(filter(None, (str(checkout), os.environ.get("PYTHONPATH"))))
    command = (sys.executable, "-m", f"benchmarks.{name}", *words)
    raise typer.Exit(subprocess.run(command, env={**os.environ, "PYTHONPATH": path}).returncode)


def _without_picture(of_what: str, plot: Path) -> None:
    raise UsageError(f"a report of {of_what} has no picture; leave out --plot {plot} [R850]")


def _numbers(option: str, text: str) -> list[int]:
    try:
        numbers = [int(each) for each in _names(text)]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise UsageError(f"{option} {text}: whole numbers above 0 are needed, separated by commas [R850]")
    return numbers


def _say_mesh(name: str, number: int, seconds: float) -> None:
    """One line on stderr for each run."""
    print(f"ronde: round {number}: {name}: {seconds * 1e3:.0f} ms/step", file=sys.stderr, flush=True)


def _say_first_call(result: FirstCall) -> None:
    """One line on stderr for each workload."""
    said = f"ronde: {result.workload}: the first call takes {result.calls:.2f} steps"
    print(said, file=sys.stderr, flush=True)


def _check_writable(*, json: Path | None = None, plot: Path | None = None) -> None:
    """Say that a file cannot be written before measuring for minutes, not after."""
    if plot is not None:
        check_drawable(plot)
    for option, path in (("--json", json), ("--plot", plot)):
        if path is None:
            continue
        try:
            path.open("a").close()
        except OSError as error:
            raise UsageError(
                f"cannot write {option} {path}: {error.strerror}; give a file in an existing folder [R800]"
            ) from None


def _tell(
    report: AnyReport,
    *,
    json: Path | None = None,
    plot: Path | None = None,
) -> None:
    if json is not None:
        json.write_text(report.to_json())
    match report:
        case FirstCallReport():
            draw, shown = partial(_without_picture, "first calls"), first_calls.table(report)
        case SyncReport():
            draw, shown = partial(sync_picture.save, report), sync_reports.table(report)
        case ServersReport():
            draw, shown = partial(_without_picture, "servers"), servers.table(report)
        case HorovodReport():
            draw, shown = partial(_without_picture, "Horovod's interface"), horovods.table(report)
        case TablesReport():
            draw, shown = partial(_without_picture, "tables"), tables.table(report)
        case ServingReport():
            draw, shown = partial(_without_picture, "serving"), serving_report.table(report)
        case CollectivesReport():
            draw, shown = partial(collectives_picture.save, report), collectives_table.table(report)
        case MemoryReport():
            draw, shown = partial(memory_picture.save, report), memory_table.table(report)
        case ParallelReport():
            draw, shown = partial(parallel_picture.save, report), parallel_report.table(report)
        case Report():
            draw, shown = partial(save, report), table(report)
    if plot is not None:
        draw(plot)
    print(shown)
