"""What `ronde bench serving` has measured, and how it is shown."""

from __future__ import annotations

import dataclasses

from ronde.bench.columns import columns
from ronde.bench.json_report import written
from ronde.bench.machine import Machine
from ronde.bench.spread import Spread

__all__ = ["KIND", "ServingFigures", "ServingReport", "table"]

KIND = "serving"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ServingFigures:
    """Of one situation.

    Attributes:
        situation: "beside training", which publishes, or "alone", when it is over.
        route: by which was asked, "http" or "binary".
        median: milliseconds of a request, from when it was due until it was answered; by round.
        p99: 99 in 100 take no longer; by round.
        lags: seconds from the end of a training step until an answer had its version; by version.
        load: of the machine at the end, as Linux has it for a minute.
        failed: requests that were not answered.
    """

    situation: str
    median: tuple[float, ...]
    p99: tuple[float, ...]
    lags: tuple[float, ...]
    load: float
    failed: int
    route: str = "http"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ServingReport:
    """One invocation of `ronde bench serving`.

    Attributes:
        rate: requests a second.
        ids: of a request.
        rows: in the table, of 16 floats.
        seconds: of a round.
        interval: seconds between versions.
        http: what parses requests: uvicorn's httptools or h11.
    """

    machine: Machine
    rate: float
    ids: int
    rows: int
    seconds: float
    interval: float
    http: str
    results: tuple[ServingFigures, ...]

    def to_json(self) -> str:
        return written(KIND, self)


def table(report: ServingReport) -> str:
    """What was measured, under a line that says on what."""
    machine = report.machine
    heading = (
        f"{machine.cores} cores of {machine.cpu}, load {machine.load} before; {report.rate:g} requests/s of "
        f"{report.ids} ids for {report.seconds:g} s a round, {report.rows:,} rows, versions each "
        f"{report.interval:g} s, HTTP by {report.http}; milliseconds, seconds of lag"
    )
    rows = [("", "by", "median", "p99", "quartiles", "lag", "longest", "versions", "failed", "load")]
    for each in report.results:
        p99 = Spread.of(each.p99)
        lags = (f"{Spread.of(each.lags).median:.2f}", f"{max(each.lags):.2f}") if each.lags else ("-", "-")
        rows.append(
            (
                each.situation,
                each.route,
                f"{Spread.of(each.median).median:.2f}",
                f"{p99.median:.2f}",
                f"{p99.low:.2f} to {p99.high:.2f}",
                lags[0],
                lags[1],
                str(len(each.lags)),
                str(each.failed),
                f"{each.load:.1f}",
            )
        )
    return f"{heading}\n\n{columns(rows)}"
