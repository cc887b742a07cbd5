"""Report of the cases."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.chaos.running import Found
from ronde.bench.machine import Machine
from ronde.bench.report import Quantity, Report, Result

__all__ = ["are_right", "report_of"]


def are_right(results: Sequence[Found]) -> bool:
    """Tell whether nearly all are right, nothing hung, and no process is left."""
    run = [each for each in results if not each.skipped]
    right = sum(each.right for each in run)
    return right >= 0.95 * len(run) and not any(each.hung or each.orphans for each in run)


def report_of(machine: Machine, results: Sequence[Found]) -> Report:
    """Return a row for each case, and the sums."""
    return Report(
        kind="chaos",
        machine=machine,
        settings={},
        quantities={"noticed after": Quantity(unit="s")},
        results=tuple(map(_row, results)),
        notes=tuple(_sums(results)),
    )


def _row(found: Found) -> Result:
    right = "yes" if found.right else f"no: {found.expected}"
    labels = {
        "fault": found.name,
        "explanation": found.cause or "none",
        "rank": "" if found.rank is None else str(found.rank),
        "right": f"left out: {found.skipped}" if found.skipped else right,
        **({"host": found.host} if found.host else {}),
    }
    numbers = {"seconds": found.seconds, "processes left": found.orphans, "hung": found.hung}
    samples = {name: (float(each),) for name, each in numbers.items()}
    if found.after is not None:
        samples["noticed after"] = (found.after,)
    return Result(labels=labels, samples=samples)


def _sums(results: Sequence[Found]) -> list[str]:
    run = [each for each in results if not each.skipped]
    right = sum(each.right for each in run)
    lines = [f"{right} of {len(run)} right ({right / max(1, len(run)):.0%})"]
    for outcome, event in (("fails", "a failure is noticed"), ("stalls", "a stall is explained")):
        times = [each.after for each in run if each.outcome == outcome and each.after is not None]
        if times:
            lines.append(f"{event} after {max(times):.1f} s at most")
    lines.append(f"{sum(each.hung for each in run)} hung, {sum(each.orphans for each in run)} processes left")
    return [*lines, *(f"{each.name}: {each.summary}" for each in run if each.summary and not each.right)]
