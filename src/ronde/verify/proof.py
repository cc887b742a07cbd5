"""`ronde verify`: the plain run, the run on ranks, twins if needed, the comparison."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from ronde.errors import UsageError
from ronde.plan import Plan
from ronde.trace.run_directory import new_run_id
from ronde.trace.temporary_folder import TemporaryFolder
from ronde.verify.clauses.noise import QUIET, Noise
from ronde.verify.clauses.verdict import ClauseVerdict, Status, Tolerance
from ronde.verify.compare import compare, in_double
from ronde.verify.curves import Curve, loss_curves
from ronde.verify.record import Twin
from ronde.verify.runs import FinishedRun, Job, Starter, run_on_ranks, run_plain, spawn
from ronde.verify.twins import (
    TWINS,
    Parting,
    Rounding,
    first_parting,
    noise_of,
    rounding_of,
    unrepeated,
    why,
)

__all__ = ["Proof", "judge", "verify"]

# Paths of logs: the directory of a proof is deleted before the proof is read.
_LOGS = re.compile(r"(;|^) ?logs of all ranks: .*", re.MULTILINE)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """The outcome of one verification.

    Attributes:
        dtype: the parameters' type; double precision may be the script's own choice.
        tolerance: the allowed differences.
        steps: optimizer steps that plain python took (fewer than asked when the script ended).
        floor: the largest difference of the vector of all parameters among twins; None without a repeat.
        twins: the number of twins that were run; no more are run once the clauses hold.
        curves: the losses that the script read, plain and on ranks.
        failure: the end of the ranks' standard error, when they failed.
        note: the reason for which the runs are not in double precision, though that was asked for.
        rounding: the numbers at ties or kinks that rounding has turned, when that explains the difference.
        parting: the step at which a twin departs from the plain run; ranks are compared up to it.
    """

    job: Job
    ranks: int
    dtype: str
    tolerance: Tolerance
    steps: int
    floor: float | None
    verdicts: tuple[ClauseVerdict, ...]
    twins: int = 0
    curves: tuple[Curve, ...] = ()
    failure: str = ""
    note: str = ""
    rounding: Rounding | None = None
    parting: Parting | None = None

    @property
    def holds(self) -> bool:
        return not self.failure and all(each.status is not Status.broken for each in self.verdicts)


def verify(job: Job, *, ranks: int, extensions: tuple[str, ...] = (), starter: Starter = spawn) -> Proof:
    """Prove, or refute, that `ranks` ranks give the script's single-device answer.

    Raises:
        UsageError: the script fails in plain python or does not repeat itself there, the plan refuses it, or
            the plan is inexact, so that there is nothing to compare.
    """
    if inexact := Plan.parse(job.plan).inexact_because:
        raise UsageError(
            f"ronde verify compares with one device, from which {', '.join(inexact)} departs by its design; "
            f"nearest legal: --plan ddp [R623]"
        )
    if job.precision != "fp32":
        # The plan's own rounding is compared.
        job = dataclasses.replace(job, double=False)
    folder = TemporaryFolder.hold(new_run_id())
    try:
        place = Path(folder.path)
        job, plain, note = _plain(job, place, starter)
        run = run_on_ranks(
            job, place / "ranks", ranks=ranks, like=plain, extensions=extensions, starter=starter
        )
        if refusal := _refusal(run):
            raise UsageError(
                f"{job.script} does not run under the plan {job.plan}, so there is nothing to compare: "
                f"{refusal} [R621]"
            )

        def start(twin: Twin) -> FinishedRun:
            return run_plain(job, place / twin, twin=twin, like=plain, starter=starter)

        return dataclasses.replace(judge(job, plain, run, ranks=ranks, start=start), note=note)
    finally:
        folder.remove()


def _plain(job: Job, place: Path, starter: Starter) -> tuple[Job, FinishedRun, str]:
    """Return the plain run, in double precision if asked for and possible.

    Otherwise the last item is the reason.
    """
    plain = run_plain(job, place / "plain", starter=starter)
    if job.double and (plain.exit_code or not _is_double(plain)):
        as_is = dataclasses.replace(job, double=False)
        again = run_plain(as_is, place / "as-is", starter=starter)
        # Where it fails either way, double precision is not the reason.
        if not again.exit_code:
            return as_is, again, _why_not_double(plain)
    if plain.exit_code:
        raise UsageError(
            f"{job.script} fails in plain python (exit code {plain.exit_code}), so there is no answer to "
            f"compare with; make it run first:\n{plain.stderr.rstrip()} [R621]"
        )
    return job, plain, ""


def _is_double(plain: FinishedRun) -> bool:
    return in_double(plain) or not plain.records[0].steps


def _why_not_double(plain: FinishedRun) -> str:
    if not plain.exit_code:
        return "the script keeps parameters of another type than float64 [R624]"
    last = plain.stderr.strip().splitlines()[-1:] or [f"exit code {plain.exit_code}"]
    return f"it fails: {last[0][:300]}"


def _refusal(run: FinishedRun) -> str:
    """Return ronde's message if it refused the script; empty if the script ran.

    A refusal does not break a clause.
    """
    said = re.search(r"^ronde: error(\[R\d\d\d\])?: (.*)", run.stderr, re.MULTILINE)
    if said is None or run.exit_code != UsageError.exit_code:
        return ""
    return f"{said[2]} {said[1]}" if said[1] else said[2]


def judge(
    job: Job,
    plain: FinishedRun,
    run: FinishedRun,
    *,
    ranks: int,
    start: Callable[[Twin], FinishedRun] | None = None,
    strict: bool = False,
) -> Proof:
    """Judge recorded runs, and run twins where a clause seems broken.

    Args:
        start: function that runs a twin of the plain run. It is called only where a clause seems broken: then
            a bound may have been too narrow for the rounding in this script, or no two runs of plain python
            agree.
        strict: whether each parameter is compared to the last places, in double precision.

    Raises:
        UsageError: plain python does not repeat itself.
    """

    def proof(noise: Noise = QUIET, repeats: Sequence[FinishedRun] = ()) -> Proof:
        tolerance = _tolerance(job, plain, noise, strict=strict)
        parting = first_parting(plain, repeats)
        return Proof(
            job=job,
            ranks=ranks,
            dtype="float64" if in_double(plain) else "float32",
            tolerance=tolerance,
            steps=len(plain.records[0].steps),
            floor=noise.floor if repeats else None,
            twins=max(0, len(repeats) - 1),
            verdicts=compare(plain, run, tolerance, repeats, parting.step if parting else None),
            curves=loss_curves(plain.records[0], run.records, tolerance, job.directory),
            failure=_LOGS.sub("", run.stderr).rstrip()[-4000:] if run.exit_code else "",
            parting=parting,
        )

    found = proof()
    if start is None or found.holds:
        return found
    again = start("again")
    if parting := unrepeated(plain, again, found.tolerance):
        raise _unrepeatable(job, plain, parting)
    found = proof(QUIET, [again])
    repeats, noise = [again], QUIET
    for twin in TWINS:
        if found.holds or found.failure:
            return found
        another = start(twin)
        if another.exit_code == plain.exit_code:
            repeats.append(another)
            noise = noise_of(plain, repeats)
            found = proof(noise, repeats)
            if found.parting is not None and found.parting.step == 1:
                raise _unrepeatable(job, plain, found.parting)
    if found.holds:
        return found
    turned = start("turned")
    if turned.exit_code == plain.exit_code and turned.records[0].turned:
        wider = Noise.largest((noise, noise_of(plain, (turned,))))
        excused = proof(wider, [*repeats, turned])
        rounding = rounding_of(plain, run, turned, noise)
        if excused.holds and rounding is not None:
            return dataclasses.replace(excused, floor=noise.floor, twins=found.twins, rounding=rounding)
    return found


def _unrepeatable(job: Job, plain: FinishedRun, parting: Parting) -> UsageError:
    return UsageError(
        f"{job.script}: plain python does not repeat itself, so there is nothing to compare ranks with: two "
        f"runs with one seed and one clock differ in {parting.what}; {why(plain)}; make it do the same in "
        "every run [R622]"
    )


def _tolerance(job: Job, plain: FinishedRun, noise: Noise, *, strict: bool) -> Tolerance:
    if job.double and strict:
        return Tolerance.strict(noise)
    if job.double:
        return Tolerance.double(noise)
    return Tolerance.as_is(noise, precision=job.precision, double=in_double(plain))
