"""Records of a run as rows with named numbers, the same for all exports."""

from __future__ import annotations

from collections.abc import Iterator

from ronde.report.run import RunState
from ronde.report.step_arrays import PARTS
from ronde.trace.step_file import ROUTES, StepRecord, StepsOfRank, read_steps, steps_path

__all__ = ["COLUMNS", "Row", "rows_of"]

Row = dict[str, float | int | None]
"""Numbers of one or several consecutive steps of a rank, by `COLUMNS`."""

_SENT = tuple(f"sent_{route.replace(' ', '_')}_bytes" for route in ROUTES)

COLUMNS = (
    *("rank", "step", "steps", "begun", "seconds", "loss", "losses", "samples", "samples_per_second"),
    *PARTS,
    *("resident_bytes", "device_bytes", *_SENT, "collectives", "last_arrivals", "others_wait"),
)
"""Names of the numbers.

Times are seconds, `begun` since the start of the run; a loss may be missing.
"""


def rows_of(run: RunState, rank: StepsOfRank) -> Iterator[Row]:
    """Yield the rows of a rank; the last one follows its last step."""
    read = read_steps(steps_path(run.path, rank.rank))
    for record in () if read is None else read.course:
        yield _row(record, rank.rank, (record.begun + rank.offset - run.begun) / 1e9)


def _row(record: StepRecord, rank: int, begun: float) -> Row:
    values = (
        *(rank, record.step, record.steps, begun, record.seconds),
        *(record.loss if record.losses else None, record.losses),
        *(record.samples, record.samples / record.seconds if record.seconds else 0.0),
        *(each / 1e9 for each in (record.data, record.forward, record.backward, record.optimizer)),
        *(record.waited / 1e9, record.other / 1e9),
        *(record.resident, record.device, *record.sent),
        *(record.collectives, record.last, record.late / 1e9),
    )
    return dict(zip(COLUMNS, values, strict=True))
