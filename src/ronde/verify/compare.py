"""Compares recorded runs by the law's clauses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy

from ronde.verify.clauses import control, data, files, randomness, update, values
from ronde.verify.clauses.verdict import ClauseVerdict, Tolerance
from ronde.verify.runs import FinishedRun

__all__ = ["compare", "in_double"]


def in_double(plain: FinishedRun) -> bool:
    """Return whether all compared parameters are in double precision, real or complex."""
    steps = plain.records[0].steps
    kinds = {numpy.dtype(stored.dtype) for step in steps for stored in step.parameters.values()}
    return bool(kinds) and kinds <= {numpy.dtype(numpy.float64), numpy.dtype(numpy.complex128)}


def compare(
    plain: FinishedRun,
    run: FinishedRun,
    tolerance: Tolerance,
    repeats: Sequence[FinishedRun] = (),
    until: int | None = None,
) -> tuple[ClauseVerdict, ...]:
    """Return the six clauses' verdicts on `run`, against plain python; all ranks are compared.

    Args:
        repeats: further runs of plain python; differences among them in printed and written output are left
            out.
        until: the optimizer step (1-based) before which the comparison ends; files are compared whole.
    """
    reference, records = plain.records[0], run.records
    exits = plain.exit_code, run.exit_code
    if until is not None:
        reference, records = reference.before(until), tuple(each.before(until) for each in records)
        exits = 0, 0
    return (
        data.compare(reference, records),
        update.compare(reference, records, tolerance),
        values.compare(reference, records, tolerance),
        control.compare(reference, records, plain_exit=exits[0], ranks_exit=exits[1]),
        files.compare(
            files.RunOutput(plain.files, plain.stdout),
            files.RunOutput(run.files, run.stdout),
            run.records,
            tolerance,
            [files.RunOutput(each.files, each.stdout) for each in repeats],
        ),
        randomness.compare(reference, records),
    )
