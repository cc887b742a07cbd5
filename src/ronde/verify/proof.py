"""`ronde verify`: the plain run, the run on ranks, the run that measures noise, and the comparison."""

from __future__ import annotations

import dataclasses
import re
import tempfile
from pathlib import Path

from ronde.errors import UsageError
from ronde.verify.clauses.verdict import Status, Tolerance, Verdict
from ronde.verify.compare import compare, in_double, noise_floor, tolerance_of
from ronde.verify.curves import Curve, loss_curves
from ronde.verify.runs import Job, Run, Starter, run_on_ranks, run_plain, spawn

__all__ = ["Proof", "judge", "verify"]

# Where they were: the directory of a proof is gone when it is read.
_LOGS = re.compile(r"(;|^) ?logs of all ranks: .*", re.MULTILINE)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """The outcome of one verification.

    Attributes:
        dtype: in what the parameters are: double precision may be the script's own choice.
        tolerance: how close is close enough.
        steps: optimizer steps that plain python took (fewer than asked when the script ended).
        floor: the noise floor that was measured, if any.
        curves: the losses that the script read, plain and on ranks.
        failure: the end of what the ranks wrote to standard error, when they failed.
    """

    job: Job
    ranks: int
    dtype: str
    tolerance: Tolerance
    steps: int
    floor: float | None
    verdicts: tuple[Verdict, ...]
    curves: tuple[Curve, ...] = ()
    failure: str = ""

    @property
    def holds(self) -> bool:
        return not self.failure and all(each.status is not Status.broken for each in self.verdicts)


def verify(job: Job, *, ranks: int, extensions: tuple[str, ...] = (), starter: Starter = spawn) -> Proof:
    """Prove, or refute, that `ranks` ranks give the script's single-device answer."""
    with tempfile.TemporaryDirectory(prefix="ronde-verify-") as name:
        place = Path(name)
        plain = run_plain(job, place / "plain", starter=starter)
        if plain.exit_code:
            raise UsageError(
                f"{job.script} fails in plain python (exit code {plain.exit_code}), so there is no answer to "
                f"compare with; make it run first:\n{plain.stderr.rstrip()}"
            )
        halves = run_plain(job, place / "halves", halves=True, like=plain, starter=starter)
        run = run_on_ranks(
            job, place / "ranks", ranks=ranks, like=plain, extensions=extensions, starter=starter
        )
        if refusal := _refusal(run):
            raise UsageError(
                f"{job.script} does not run under the plan {job.plan}, so there is nothing to compare: "
                f"{refusal}"
            )
        return judge(job, plain, run, ranks=ranks, halves=None if halves.exit_code else halves)


def _refusal(run: Run) -> str:
    """What ronde said instead of running the script: no clause is broken by that. Empty where it ran."""
    said = re.search(r"^ronde: error: (.*)", run.stderr, re.MULTILINE)
    return said[1] if said and run.exit_code == UsageError.exit_code else ""


def judge(job: Job, plain: Run, run: Run, *, ranks: int, halves: Run | None = None) -> Proof:
    """The proof that these recorded runs amount to."""
    tolerance = tolerance_of(plain, halves, dtype=job.dtype, precision=job.precision)
    return Proof(
        job=job,
        ranks=ranks,
        dtype="float64" if in_double(plain) else job.dtype,
        tolerance=tolerance,
        steps=len(plain.records[0].steps),
        floor=noise_floor(plain, halves) if halves is not None else None,
        verdicts=compare(plain, run, tolerance, halves),
        curves=loss_curves(plain.records[0], run.records, tolerance, job.directory),
        failure=_LOGS.sub("", run.stderr).rstrip()[-4000:] if run.exit_code else "",
    )
