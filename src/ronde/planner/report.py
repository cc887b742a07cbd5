"""Formats an answer as lines for a terminal."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence

from ronde.planner.answer import Answer, InTime, NoFit, RankedPlan
from ronde.planner.training import TrainingCost
from ronde.trace.number_format import show_duration, show_share

__all__ = ["report"]

_WIDTH = 110
_LEAST_GAIN = 0.005
_VALUE = re.compile(r"=\S+")


def report(answer: Answer) -> str:
    """Return the table, or the missing memory, with a heading and notes."""
    heading = (
        f"{answer.model}: {_number(answer.parameters)} parameters, a batch of {answer.batch}, on "
        f"{answer.devices} devices of {answer.cluster}; {answer.fitting:,} of {answer.considered:,} plans fit"
    )
    body = _no_fit(answer.no_fit) if answer.no_fit is not None else _table(answer)
    notes = [
        textwrap.fill(note, _WIDTH, subsequent_indent="  ", break_on_hyphens=False)
        for note in (*answer.notes, *_legend(answer))
    ]
    return "\n\n".join([textwrap.fill(heading, _WIDTH), body, "\n".join(notes)]).rstrip()


def _table(answer: Answer) -> str:
    lasts = any(choice.training is not None for choice in answer.choices)
    priced = any(choice.training is not None and choice.training.price for choice in answer.choices)
    shown = ["training"] * lasts + ["price"] * priced
    rows = [
        (
            "",
            "s/step",
            "from to",
            f"{answer.unit}/s",
            "MFU",
            *shown,
            "GiB",
            "reserved",
            "wall",
            "next",
            "plan",
        )
    ]
    for place, choice in enumerate(answer.choices, 1):
        cells = _training_cells(choice.training)[: len(shown)]
        rows.append(
            (
                str(place),
                _seconds(choice.seconds),
                f"{_seconds(choice.low)} {_seconds(choice.high)}",
                _number(choice.per_second),
                f"{choice.mfu:.0%}",
                *cells,
                f"{choice.allocated / 2**30:.2f}",
                f"{choice.reserved / 2**30:.2f}{'!' if choice.tight else ''}",
                _wall(choice.walls, 0),
                _wall(choice.walls, 1),
                choice.plan + _marks(choice),
            )
        )
    return _columns(rows)


def _training_cells(training: TrainingCost | None) -> tuple[str, ...]:
    """Return the cells of a training's time and price; `*` marks a late one."""
    if training is None:
        return ()
    late = "*" if training.late else ""
    return (show_duration(training.seconds) + late, "" if training.price is None else _number(training.price))


def _training_lines(answer: Answer) -> list[str]:
    """Return sentences on the best plan's training, and on a deadline that is missed."""
    training = answer.choices[0].training
    if training is None:
        return []
    parts = [f"plan 1: {training.steps:,.0f} steps in {show_duration(training.seconds)}"]
    if training.price is not None:
        parts.append(f"price {_number(training.price)}")
    if training.interval is not None:
        parts.append(
            f"a checkpoint every {show_duration(training.interval)} takes "
            f"{show_duration(training.checkpoint)}; with {_number(training.failures)} failures expected, "
            f"{show_share(training.lost)} of the time is lost"
        )
    lines = ["; ".join(parts)]
    if any(choice.training is not None and choice.training.late for choice in answer.choices):
        lines.append("*: ends after the deadline")
    if answer.in_time is not None:
        lines.append(_in_time(answer.in_time))
    return lines


def _in_time(found: InTime) -> str:
    if found.training is None:
        return "no number of these devices that was tried ends by the deadline"
    price = found.training.price
    cost = "" if price is None else f", price {_number(price)}"
    return (
        f"fewest devices that end by the deadline: {found.devices}, by {found.plan}: "
        f"{show_duration(found.training.seconds)}{cost}"
    )


def _marks(choice: RankedPlan) -> str:
    return ("" if choice.exact else "  (inexact)") + _mark(choice.missing)


def _mark(missing: Sequence[str]) -> str:
    return "  (not in this version)" if missing else ""


def _named(missing: Iterable[str]) -> list[str]:
    """Return the note on features that are not built, one example of each."""
    kinds: dict[str, str] = {}
    for sentence in missing:
        what = sentence.partition(" is not available")[0]
        kinds.setdefault(_VALUE.sub("", what), what)
    if not kinds:
        return []
    return [
        f"not in this version: {', '.join(kinds.values())}; ronde plan show PLAN names the nearest that is"
    ]


def _wall(walls: Sequence[tuple[str, float]], place: int) -> str:
    name, gain = walls[place]
    return f"{name} -{gain:.0%}" if gain >= _LEAST_GAIN else "none"


def _legend(answer: Answer) -> list[str]:
    if answer.no_fit is not None:
        return _named((*answer.no_fit.nearest_missing, *answer.no_fit.with_missing))
    lines = [
        *_training_lines(answer),
        "a wall takes that share of the step: with ideal kernels (compute), infinite memory, free links "
        "(communication), a free host, no bubble, a free loader (data)",
    ]
    if any(choice.tight for choice in answer.choices):
        lines.append(
            "!: what the allocator usually reserves is more than the device has; it may have to give back"
        )
    lines += _named(sentence for choice in answer.choices for sentence in choice.missing)
    if all(choice.missing for choice in answer.choices):
        lines.append("none of these runs in this version, nor does any other that fits")
    return lines


def _no_fit(no_fit: NoFit) -> str:
    kinds = ", ".join(f"{kind} {value / 2**30:.2f}" for kind, value in no_fit.kinds.items() if value)
    lines = [
        f"does not fit: a device has {no_fit.available / 2**30:.2f} GiB for it",
        f"nearest plan: {no_fit.nearest}: {no_fit.allocated / 2**30:.2f} GiB on the worst rank"
        + _mark(no_fit.nearest_missing),
        f"GiB by kind: {kinds}",
    ]
    if no_fit.devices:
        lines.append(
            f"smallest cluster of these devices that does: {no_fit.devices}, by {no_fit.with_plan}"
            + _mark(no_fit.with_missing)
        )
        if no_fit.with_missing and no_fit.runs:
            lines.append(
                f"smallest by a plan of this version: {no_fit.runs}, by {no_fit.with_plan_that_runs}"
            )
        elif no_fit.with_missing:
            lines.append("no plan of this version fits on any number of these devices that was tried")
    else:
        lines.append("no number of these devices that was tried would do; take some with more memory")
    return "\n".join(lines)


def _columns(rows: Sequence[tuple[str, ...]]) -> str:
    """Align numbers to the right, and the plan to the left."""
    last = len(rows[0]) - 1
    widths = [max(len(row[place]) for row in rows) for place in range(last)]
    lines = [
        "  ".join([*(row[place].rjust(widths[place]) for place in range(last)), row[last]]) for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)


def _seconds(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.1f}"


def _number(value: float) -> str:
    """Format a number with three significant digits.

    >>> [_number(each) for each in (12.3456, 1234.0, 7.1e9)]
    ['12.3', '1,234', '7.10 G']
    """
    for size, name in ((1e12, " T"), (1e9, " G"), (1e6, " M")):
        if value >= size:
            return f"{value / size:.3g}{name}" if value >= 10 * size else f"{value / size:.2f}{name}"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
