"""Compares recorded runs by the law's clauses."""

from __future__ import annotations

from ronde.verify.clauses import control, data, files, randomness, update, values
from ronde.verify.clauses.verdict import Tolerance, Verdict
from ronde.verify.runs import Run

__all__ = ["compare", "noise_floor"]


def noise_floor(plain: Run, halves: Run) -> float | None:
    """How far plain torch is from itself with batches computed in halves; None where that is not possible."""
    done, _ = halves.records[0].halved
    return update.vector_difference(halves.records[0], plain.records[0]) if done else None


def compare(
    plain: Run, run: Run, *, dtype: str, halves: Run | None = None, precision: str = "fp32"
) -> tuple[Verdict, ...]:
    """The six clauses' verdicts on `run`, against plain python; all ranks are compared."""
    floor = noise_floor(plain, halves) if halves is not None else None
    reference = plain.records[0]
    gradient_floor = None if halves is None else values.norm_difference(halves.records[0], reference)
    tolerance = Tolerance.of(dtype, floor, precision, gradient_floor)
    repeat = files.Output(halves.files, halves.stdout) if halves is not None else None
    return (
        data.compare(reference, run.records),
        update.compare(reference, run.records, tolerance, None if halves is None else halves.records[0]),
        values.compare(reference, run.records, tolerance),
        control.compare(reference, run.records, plain_exit=plain.exit_code, ranks_exit=run.exit_code),
        files.compare(
            files.Output(plain.files, plain.stdout),
            files.Output(run.files, run.stdout),
            run.records,
            tolerance,
            repeat,
        ),
        randomness.compare(reference, run.records),
    )
