"""A report on collectives as lines for a terminal."""

from __future__ import annotations

import textwrap

from ronde.bench.collectives.contender import CONTENDERS
from ronde.bench.collectives.report import CollectivesReport
from ronde.bench.collectives.size import show_size
from ronde.bench.columns import columns

__all__ = ["show_time", "table"]

_HEAD: tuple[str, ...] = (
    "operation",
    "size",
    "ronde",
    "time",
    "peer",
    "time",
    "of medians",
    "median ratio",
    "quartiles",
    "rounds",
)
_LEGEND = (
    "size: of the larger of a rank's two tensors. time: of one call among many, one behind the other, median "
    "over all rounds",
    "ratio: the peer's time over ronde's, above 1 is faster: of the medians, and median and quartiles of the "
    "ratios within a round",
    "shared buckets: the mean, with its division; all others leave that to the caller",
)


def table(report: CollectivesReport) -> str:
    """The figures of a report under a line that says where they were measured."""
    legend = [textwrap.fill(line, 100, subsequent_indent="  ") for line in _LEGEND]
    missing = [
        f"{CONTENDERS[name].title}: not installed, so not measured; to install it: {how}"
        for name, how in report.missing.items()
    ]
    return "\n\n".join([_heading(report), columns(_rows(report)), "\n".join([*missing, *legend])])


def show_time(microseconds: float) -> str:
    """Three digits and a unit.

    >>> show_time(12.345), show_time(1234.5), show_time(2.5e6)
    ('12.3 us', '1.23 ms', '2500 ms')
    """
    if microseconds < 1000:
        return f"{microseconds:.3g} us"
    return f"{microseconds / 1000:.3g} ms" if microseconds < 1e6 else f"{microseconds / 1000:.0f} ms"


def _heading(report: CollectivesReport) -> str:
    machine, each = report.machine, f"{report.threads} thread{'s' if report.threads > 1 else ''}"
    versions = dict.fromkeys([f"torch {machine.torch}", *report.versions.values()])
    return (
        f"{report.ranks} ranks of {each} on {machine.cpu}, "
        f"{machine.cores} cores, {machine.memory_gib:.0f} GiB, load {machine.load:.1f} before; "
        f"python {machine.python}, {', '.join(versions)}"
    )


def _rows(report: CollectivesReport) -> list[tuple[str, ...]]:
    rows = [_HEAD]
    for result in report.results:
        size = show_size(result.case.nbytes) if result.case.nbytes else ""
        for ours in result.ours:
            for peer in result.peers:
                comparison = result.against(ours, peer)
                ratio = comparison.ratio
                rows.append(
                    (
                        result.case.operation,
                        size,
                        CONTENDERS[ours].title,
                        show_time(result.microseconds(ours).median),
                        CONTENDERS[peer].title,
                        show_time(result.microseconds(peer).median),
                        f"{comparison.ratio_of_medians:.3g}",
                        f"{ratio.median:.3g}",
                        f"{ratio.low:.3g} to {ratio.high:.3g}",
                        str(len(result.rounds)),
                    )
                )
    return rows
