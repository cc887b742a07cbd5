"""Runs a workload under each mesh, in one process and by hand, in alternating order."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ronde.bench.choice import check_known
from ronde.bench.contenders import plain, plain_words, step_words, under_ronde, with_peer
from ronde.bench.data_parallel import WORKLOADS as DATA_PARALLEL
from ronde.bench.machine import Machine
from ronde.bench.memory.comparison import sizes_of
from ronde.bench.parallel.report import (
    BY_HAND,
    CONTEXT_BY_HAND,
    ONE_PROCESS,
    TWICE_BY_HAND,
    MeshRun,
    ParallelReport,
    RankFigures,
    Span,
)
from ronde.bench.peers import Peer
from ronde.bench.process_set import Process, run_together
from ronde.bench.rounds import check_same_training, orders
from ronde.bench.sample import Sample
from ronde.cluster.devices import device_of_ranks
from ronde.errors import BenchError, PlanError
from ronde.plan import check, expand
from ronde.trace.run_directory import RunDirectory
from ronde.trace.step_file import read_steps, steps_path
from ronde.trace.summary import read_summary

__all__ = [
    "CUT_BY_HAND",
    "CUT_SEQUENCES_BY_HAND",
    "CUT_TWICE_BY_HAND",
    "WORKLOADS",
    "in_micro_batches",
    "measure",
    "meshes",
    "timelines_of",
]

WORKLOADS = ("transformer-512", *DATA_PARALLEL)

_TIMEOUT = 900.0
CUT_BY_HAND = Peer(name="tensor", title="parallelize_module", distribution="torch", module="torch")
CUT_TWICE_BY_HAND = Peer(
    name="tensor_fsdp2", title="FSDP2 x parallelize_module", distribution="torch", module="torch"
)
CUT_SEQUENCES_BY_HAND = Peer(
    name="context", title="context parallelism by hand", distribution="torch", module="torch"
)
# Of which this repository has a script by hand.
_TENSOR_BY_HAND = ("gpt",)
# What is shorter cannot be seen in a picture of a step.
_LEAST_SHARE = 0.002


def meshes(ranks: int, micro_batches: Sequence[int]) -> list[str]:
    """The plans of all meshes of data, tensor and pipeline that so many ranks make up.

    >>> meshes(2, [4])
    ['ddp', 'tensor=2', 'pipeline=2,micro-batches=4']
    """
    found: list[str] = []
    for pipeline in _divisors(ranks):
        for tensor in _divisors(ranks // pipeline):
            sizes = {"data": ranks // pipeline // tensor, "tensor": tensor, "pipeline": pipeline}
            cut = [f"{axis}={size}" for axis, size in sizes.items() if size > 1]
            if cut == [f"data={ranks}"]:
                cut = ["ddp"]
            found.append(",".join(cut))
    return in_micro_batches(found, micro_batches)


def in_micro_batches(plans: Sequence[str], micro_batches: Sequence[int]) -> list[str]:
    """Each plan; one of a pipeline that names no micro-batches, once for each number of them.

    Raises:
        PlanError: what one says is no plan.

    >>> in_micro_batches(["ddp", "pipeline=2"], [4, 8])
    ['ddp', 'pipeline=2,micro-batches=4', 'pipeline=2,micro-batches=8']
    """
    found: list[str] = []
    for plan in plans:
        if expand(plan).mesh.pipeline > 1 and "micro-batches" not in plan:
            found += [f"{plan},micro-batches={each}" for each in micro_batches]
        else:
            found.append(plan)
    return found


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]


def measure(
    workload: str,
    plans: Sequence[str],
    *,
    ranks: int,
    rounds: int,
    scale: int,
    steps: int | None,
    environment: Mapping[str, str],
    progress: Callable[[str, int, float], None],
) -> ParallelReport:
    """Time the workload under each plan; each process has one thread.

    Args:
        scale: how many of the workload's batches make one.
        progress: hears who ran, in which round, and the seconds of a step.

    Raises:
        UsageError: for a workload that there is not.
        BenchError: a run failed, or two did not train alike.
    """
    check_known([workload], WORKLOADS, what="workload")
    runs, refused = [], []
    for plan in plans:
        try:
            check(expand(plan), ranks, device_of_ranks(environment))
            runs.append(plan)
        except PlanError:
            refused.append(plan)
    machine = Machine.here()
    arguments = ["--scale", str(scale), *(() if steps is None else ("--steps", str(steps)))]
    alone = {**environment, "OMP_NUM_THREADS": "1"}
    contenders: dict[str, Callable[[], Sample]] = {
        ONE_PROCESS: plain(workload, arguments, environment=alone).run
    }
    share: dict[str, Any] = {"ranks": ranks, "threads": 1, "environment": environment}
    if workload in _TENSOR_BY_HAND:
        contenders[BY_HAND] = with_peer(CUT_BY_HAND, workload, arguments, **share).run
        if any(_is_cut_twice(plan) for plan in runs):
            contenders[TWICE_BY_HAND] = with_peer(CUT_TWICE_BY_HAND, workload, arguments, **share).run
        if any(expand(plan).mesh.context == ranks for plan in runs):
            contenders[CONTEXT_BY_HAND] = with_peer(CUT_SEQUENCES_BY_HAND, workload, arguments, **share).run
    for plan in runs:
        contenders[plan] = under_ronde(workload, arguments, plan=plan, steps=_by_steps(plan), **share).run
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    first: Sample | None = None
    for number, order in enumerate(orders(list(contenders), rounds), 1):
        for name in order:
            sample = contenders[name]()
            first = first or sample
            check_same_training(first, sample, peer=name)
            seconds[name].append(sample.seconds / sample.steps)
            progress(name, number, seconds[name][-1])
    results = []
    for name in contenders:
        ours = name in runs
        mesh, compute = (expand(name).mesh, expand(name).compute) if ours else (None, None)
        results.append(
            MeshRun(
                name=name,
                ways=1 if name == ONE_PROCESS else ranks,
                step_seconds=tuple(seconds[name]),
                stages=1 if mesh is None else mesh.pipeline,
                micro_batches=1 if compute is None else compute.micro_batches,
                schedule=(None if compute is None else compute.schedule) or "gpipe",
                ranks=_figures(workload, arguments, name, ranks, environment) if ours else (),
            )
        )
    return ParallelReport(
        machine=machine,
        workload=workload if scale == 1 else f"{workload} x {scale}",
        parameters=sizes_of(workload, environment).parameters,
        results=tuple(results),
        refused=tuple(refused),
    )


def _figures(
    workload: str, arguments: Sequence[str], plan: str, ranks: int, environment: Mapping[str, str]
) -> tuple[RankFigures, ...]:
    """One run more, of few steps, in which each rank is looked at, and what it did in the last but one."""
    few = [*arguments, "--warm-up", "3", "--steps", "3"]
    with tempfile.TemporaryDirectory(prefix="ronde-bench-run-") as folder:
        trace, directory = Path(folder) / "trace.json", RunDirectory(path=Path(folder) / "run", run_id="")
        start = (sys.executable, "-m", "ronde", "run", "--ranks", str(ranks), "--plan", plan, "--seed", "0")
        options = ("--threads", "1", "--run-dir", str(directory.path), "--trace", str(trace))
        words = step_words(workload, few) if _by_steps(plan) else plain_words(workload, few)
        command = (*start, *options, "--trace-steps", "5:5", *words)
        run_together([Process(command=command, environment=environment)], timeout=_TIMEOUT)
        timelines = timelines_of(json.loads(trace.read_text())["traceEvents"], ranks)
        return tuple(_figures_of(directory, rank, timelines[rank]) for rank in range(ranks))


def _is_cut_twice(plan: str) -> bool:
    """Whether the script of two axes by hand cuts as this plan does."""
    values = expand(plan)
    mesh, cut = values.mesh, (values.mesh.pipeline, values.mesh.context, values.mesh.expert)
    return values.state.placement == "zero3" and mesh.tensor == 2 and cut == (1, 1, 1)


def _by_steps(plan: str) -> bool:
    """Whether the plan's schedule is one that owns forward and backward."""
    return expand(plan).compute.schedule not in (None, "gpipe")


def _figures_of(directory: RunDirectory, rank: int, timeline: tuple[Span, ...]) -> RankFigures:
    summary, steps = read_summary(directory.summary(rank)), read_steps(steps_path(directory.path, rank))
    if summary is None or summary.memory is None or steps is None:
        raise BenchError(f"rank {rank} left no account of its run in {directory.path.name} [R852]")
    usual = [each for each in steps.recent if each.step > 3] or list(steps.recent)
    return RankFigures(
        memory={str(kind): nbytes for kind, nbytes in summary.memory.peaks.items()},
        sent=int(statistics.median(sum(each.sent) / max(each.steps, 1) for each in usual)),
        waited=statistics.median(each.waited / max(each.ended - each.begun, 1) for each in usual),
        timeline=timeline,
    )


def timelines_of(events: Sequence[Mapping[str, object]], ranks: int) -> list[tuple[Span, ...]]:
    """Of each rank the phases and waits of a timeline of one step, from its first moment."""
    spans = [each for each in events if each.get("ph") == "X"]
    steps = [each for each in spans if each["cat"] == "step"]
    begun = min((_number(each["ts"]) for each in steps), default=0.0)
    shortest = _LEAST_SHARE * max((_number(each["dur"]) for each in steps), default=0.0)
    found: list[list[Span]] = [[] for _ in range(ranks)]
    for each in spans:
        begin, length = _number(each["ts"]) - begun, _number(each["dur"])
        if each["cat"] != "step" and length >= shortest:
            rank = int(_number(each["pid"]))
            end = (begin + length) / 1e3
            found[rank].append(Span(name=str(each["name"]), begin=begin / 1e3, end=end))
    return [tuple(each) for each in found]


def _number(value: object) -> float:
    assert isinstance(value, (int, float))
    return float(value)
