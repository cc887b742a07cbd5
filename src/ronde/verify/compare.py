"""Compares recorded runs by the law's clauses."""

from __future__ import annotations

import numpy

from ronde.verify.clauses import control, data, files, randomness, update, values
from ronde.verify.clauses.verdict import Tolerance, Verdict
from ronde.verify.runs import Run

__all__ = ["compare", "in_double", "noise_floor", "tolerance_of"]


def noise_floor(plain: Run, halves: Run) -> float | None:
    """How far plain torch is from itself with batches computed in halves; None where that is not possible."""
    done, _ = halves.records[0].halved
    return update.vector_difference(halves.records[0], plain.records[0]) if done else None


def in_double(plain: Run) -> bool:
    """Whether all parameters that are compared are in double precision, real or complex."""
    steps = plain.records[0].steps
    kinds = {numpy.dtype(stored.dtype) for step in steps for stored in step.parameters.values()}
    return bool(kinds) and kinds <= {numpy.dtype(numpy.float64), numpy.dtype(numpy.complex128)}


def tolerance_of(plain: Run, halves: Run | None, *, dtype: str, precision: str = "fp32") -> Tolerance:
    """How close is close enough to this plain run."""
    reference = plain.records[0]
    return Tolerance.of(
        dtype,
        noise_floor(plain, halves) if halves is not None else None,
        precision,
        None if halves is None else values.norm_difference(halves.records[0], reference),
        double=in_double(plain),
    )


def compare(plain: Run, run: Run, tolerance: Tolerance, halves: Run | None = None) -> tuple[Verdict, ...]:
    """The six clauses' verdicts on `run`, against plain python; all ranks are compared."""
    reference = plain.records[0]
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
