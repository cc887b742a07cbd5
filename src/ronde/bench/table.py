"""A report as lines for a terminal."""

from __future__ import annotations

import textwrap

from ronde.bench.columns import columns
from ronde.bench.data_parallel import NOTES
from ronde.bench.peers import PEERS
from ronde.bench.report import Report
from ronde.bench.spread import Spread

__all__ = ["STARTS", "table"]

_DATA_PARALLEL: tuple[str, ...] = (
    "workload",
    "ronde samples/s",
    "peer",
    "samples/s",
    "of medians",
    "median ratio",
    "quartiles",
    "rounds",
)
_OVERHEAD: tuple[str, ...] = (
    "workload",
    "plain steps/s",
    "plain us/step",
    "added us/step",
    "quartiles",
    "added %",
)

# Workloads of which the time of the whole process counts, and what they are compared with.
STARTS = {"start-up": "plain python", "start-up-2": "torchrun"}


def table(report: Report) -> str:
    """The figures of a report under a line that says where they were measured."""
    body = _data_parallel(report) if report.kind == "dp" else _overhead(report)
    return "\n\n".join([_heading(report), *body])


def _heading(report: Report) -> str:
    machine, threads = report.machine, report.threads
    each = "" if threads is None else f" of {threads} thread{'s' if threads > 1 else ''}"
    devices = sorted(
        {
            sample.device
            for result in report.results
            for each in result.rounds
            for sample in each.samples.values()
        }
        - {"cpu"}
    )
    on = ", ".join([*devices, machine.cpu])
    versions = dict.fromkeys([f"torch {machine.torch}", *report.versions.values()])
    return (
        f"{report.ranks} rank{'s' if report.ranks > 1 else ''}{each} on {on}, {machine.cores} cores, "
        f"{machine.memory_gib:.0f} GiB, load {machine.load:.1f} before; "
        f"python {machine.python}, {', '.join(versions)}"
    )


def _data_parallel(report: Report) -> list[str]:
    """Throughput against each peer: medians, and the quartiles of the pairs' ratios."""
    rows = [_DATA_PARALLEL]
    for result in report.results:
        for peer in result.peers:
            comparison = result.against(peer)
            ratio = comparison.ratio
            rows.append(
                (
                    result.workload,
                    f"{comparison.our_speed.median:.1f}",
                    PEERS[peer].title,
                    f"{comparison.peer_speed.median:.1f}",
                    f"{comparison.ratio_of_medians:.3f}",
                    f"{ratio.median:.3f}",
                    f"{ratio.low:.3f} to {ratio.high:.3f}",
                    str(len(result.rounds)),
                )
            )
    legend = [
        "ratio: ronde's samples/s over the peer's, above 1 is faster: of the medians over all rounds, and "
        "median and quartiles of the ratios within a round"
    ]
    if report.method == "dlperf":
        legend.append(
            "method dlperf: the workload's batch on each rank, 20 steps ignored, 100 timed, the median counts"
        )
    measured = {result.workload for result in report.results}
    legend += [f"{workload}: {note}" for workload, note in NOTES.items() if workload in measured]
    return [columns(rows), "\n".join(textwrap.fill(line, 100, subsequent_indent="  ") for line in legend)]


def _overhead(report: Report) -> list[str]:
    """What one rank costs over plain python, per step and at the start."""
    rows, start = [_OVERHEAD], []
    for result in report.results:
        comparison = result.against(result.peers[0])
        if result.workload in STARTS:
            added = comparison.added_wall_seconds
            start.append(
                f"{result.workload}: {added.median:+.3f} s over {STARTS[result.workload]} "
                f"(quartiles {_range(added, 3)} s, whole process)"
            )
            continue
        plain = Spread.of(sample.step_microseconds for sample in comparison.peer)
        added = comparison.added_microseconds
        rows.append(
            (
                result.workload,
                f"{1e6 / plain.median:.0f}",
                f"{plain.median:.1f}",
                f"{added.median:+.1f}",
                _range(added, 1),
                f"{comparison.added_per_cent.median:+.2f}",
            )
        )
    return [*([columns(rows)] if len(rows) > 1 else []), *start]


def _range(spread: Spread, digits: int) -> str:
    return f"{spread.low:+.{digits}f} to {spread.high:+.{digits}f}"
