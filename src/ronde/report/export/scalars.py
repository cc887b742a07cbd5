"""Series of a run for tools that draw a curve for each name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ronde.report.export.rows import Row, rows_of
from ronde.report.run import RunState
from ronde.report.step_arrays import PARTS
from ronde.trace.step_file import StepsOfRank

__all__ = ["Scalar", "scalars_of"]


class Scalar(NamedTuple):
    """One value of a curve.

    Attributes:
        name: name of the curve.
        step: optimizer step.
        time: seconds since 1970.
    """

    name: str
    value: float
    step: int
    time: float


def scalars_of(run: RunState) -> Iterator[Scalar]:
    """Yield curves of the first rank, and waiting and memory of each rank."""
    for number, rank in enumerate(run.ranks):
        for row in rows_of(run, rank.steps):
            if not row["steps"]:
                continue
            time = _time(run, rank.steps, row)
            named = {**(_of_main(row) if not number else {}), **_of_each(row, rank.rank)}
            for name, value in named.items():
                yield Scalar(name, float(value), int(row["step"] or 0), time)


def _time(run: RunState, rank: StepsOfRank, row: Row) -> float:
    started = rank.wall / 1e9 - (rank.monotonic + rank.offset - run.begun) / 1e9
    return started + (row["begun"] or 0) + (row["seconds"] or 0)


def _of_main(row: Row) -> dict[str, float]:
    steps = row["steps"] or 1
    seconds = row["seconds"] or 1e-9
    loss = row["loss"]
    return {
        **({} if loss is None else {"loss": loss}),
        "throughput/steps_per_second": steps / seconds,
        **({"throughput/samples_per_second": row["samples_per_second"] or 0} if row["samples"] else {}),
        **{f"seconds_per_step/{phase}": (row[phase] or 0) / steps for phase in PARTS},
    }


def _of_each(row: Row, rank: int) -> dict[str, float]:
    seconds = row["seconds"] or 1e-9
    memory = {"memory/process": row["resident_bytes"], "memory/device": row["device_bytes"]}
    return {
        f"waits_for_others/rank_{rank}": (row["communication"] or 0) / seconds,
        f"keeps_others_waiting/rank_{rank}": (row["others_wait"] or 0) / seconds,
        **{f"{name}/rank_{rank}": nbytes for name, nbytes in memory.items() if nbytes},
    }
