"""Reading of kept reports, of this and of earlier forms.

In earlier forms each kind of report had fields of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ronde.bench import meshes, steps
from ronde.bench.collectives import measure as collectives
from ronde.bench.collectives.cases import Case
from ronde.bench.machine import Machine
from ronde.bench.memory import measure as memory
from ronde.bench.memory.formula import Activations, Sizes
from ronde.bench.report import FORM, Quantity, Report, Result, made_of
from ronde.bench.sample import Sample
from ronde.errors import UsageError
from ronde.trace.memory import Memory

__all__ = ["KINDS", "read_report"]

_NOT_A_REPORT = "this is not a report of ronde bench; give a file that --json has written [R850]"

Fields = dict[str, Any]
_Quantities = Mapping[str, Quantity]
_Converter = Callable[[Fields], tuple[list[Result], _Quantities, Sequence[str]]]
_BESIDE = ("kind", "machine", "results", "figures", "sizes", "activations", "missing", "versions", "refused")

_LONG = 50  # characters of a word that is in the notes, not in the table


def read_report(text: str) -> Report:
    """Return the report in a text of this or an earlier version.

    Raises:
        UsageError: the text is something else, or has a form before the oldest that is known.
    """
    try:
        fields = json.loads(text)
        kind = fields.get("kind")
        if fields.pop("form", None) == FORM:
            return made_of(Report, fields)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise UsageError(_NOT_A_REPORT) from None
    if kind not in KINDS or "results" not in fields:
        raise UsageError(_NOT_A_REPORT)
    try:
        return _converted(fields)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError):
        raise UsageError(
            f"this report of ronde bench {kind} has an older form, which this version does not read; measure "
            f"anew: ronde bench {kind} --json FILE [R850]"
        ) from None


def _converted(fields: Fields) -> Report:
    """Return the report of an earlier form.

    Raises:
        ValueError, TypeError, KeyError, AttributeError, IndexError: the form is older still.
    """
    kind: str = fields["kind"]
    results, quantities, notes = KINDS[kind](fields)
    settings = {name: value for name, value in fields.items() if name not in _BESIDE and value is not None}
    settings |= fields.get("versions", {})
    return Report(
        kind=kind,
        machine=made_of(Machine, fields["machine"]),
        settings={name: _word(value) for name, value in settings.items()},
        quantities=quantities,
        results=tuple(results),
        notes=tuple(notes),
    )


def _word(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(f"{each:.4g}" if isinstance(each, float) else str(each) for each in value)
    return str(value)


def _steps(fields: Fields) -> tuple[list[Result], _Quantities, Sequence[str]]:
    rows: list[Result] = []
    for each in fields["results"]:
        rounds = [one["samples"] for one in each["rounds"]]
        samples = {
            name: [Sample(**{**one[name], "losses": tuple(one[name]["losses"])}) for one in rounds]
            for name in each["commands"]
        }
        rows += steps.compared(each["workload"], samples)
    if fields["kind"] == "overhead":
        return rows, steps.OVERHEAD, steps.OVERHEAD_NOTES
    return rows, steps.DP, steps.notes_of([each["workload"] for each in fields["results"]], fields["method"])


def _memory(fields: Fields) -> tuple[list[Result], _Quantities, Sequence[str]]:
    sizes = Sizes(**fields["sizes"])
    kept = None if fields.get("activations") is None else Activations(**fields["activations"])
    rows: list[Result] = []
    where = ""
    for each in fields["results"]:
        memories = [made_of(Memory, rank) for rank in each["ranks"]]
        where = memories[0].where
        rows += memory.rows_of(each["plan"], memories, sizes, kept)
    plans = [each["plan"] for each in fields["results"]]
    return rows, memory.QUANTITIES, memory.notes_of(plans, sizes, kept, where)


def _collectives(fields: Fields) -> tuple[list[Result], _Quantities, Sequence[str]]:
    rows: list[Result] = []
    for each in fields["results"]:
        times = {
            name: [one[name]["seconds"] / one[name]["calls"] * 1e6 for one in each["rounds"]]
            for name in each["rounds"][0]
        }
        rows += collectives.rows_of(Case(**each["case"]), times)
    return rows, collectives.QUANTITIES, collectives.NOTES


def _parallel(fields: Fields) -> tuple[list[Result], _Quantities, Sequence[str]]:
    seconds = {each["name"]: each["step_seconds"] for each in fields["results"]}
    rows = []
    for each in fields["results"]:
        pipeline = each.get("stages", 1), each.get("micro_batches", 1), each.get("schedule", "gpipe")
        ranks = [
            meshes.RankFigures(memory=rank["memory"], sent=rank["sent"], waited=rank["waited"])
            for rank in each["ranks"]
        ]
        of_one = seconds.get(meshes.ONE_PROCESS)
        name = each["name"]
        rows.append(
            meshes.row_of(fields["workload"], name, seconds[name], of_one, each["ways"], pipeline, ranks)
        )
    return rows, meshes.QUANTITIES, meshes.notes_of(fields.get("refused", ()))


def _flat(fields: Fields) -> tuple[list[Result], _Quantities, Sequence[str]]:
    """Return words as labels, and numbers and lists of numbers as samples."""
    rows, notes = [], []
    for each in fields["results"]:
        cells = dict(_cells(each))
        words = {name: value for name, value in cells.items() if isinstance(value, str) and value}
        notes += [f"{next(iter(words.values()))}: {word}" for word in words.values() if len(word) > _LONG]
        words = {name: word for name, word in words.items() if len(word) <= _LONG}
        numbers = {name: value for name, value in cells.items() if not isinstance(value, str)}
        rows.append(Result(labels=words, samples=numbers))
    if not all(row.labels and row.samples for row in rows):
        raise ValueError
    names = dict.fromkeys(name for row in rows for name in row.samples)
    return rows, dict.fromkeys(names, Quantity()), notes


def _cells(result: Mapping[str, Any]) -> Iterator[tuple[str, str | tuple[float, ...]]]:
    for name, value in result.items():
        match value:
            case bool():
                yield name, "yes" if value else "no"
            case str():
                yield name, value
            case int() | float():
                yield name, (float(value),)
            case [*numbers] if all(isinstance(each, (int, float)) for each in numbers):
                yield name, tuple(map(float, numbers))
            case dict():
                yield from _cells(value)
            case [dict() as first, *_]:
                yield from ((key, tuple(float(each[key]) for each in value)) for key in first)
            case _:
                pass


_FLAT = ("chaos", "first-call", "horovod", "planner", "servers", "serving", "sync", "tables")
KINDS: Mapping[str, _Converter] = {
    "dp": _steps,
    "overhead": _steps,
    "memory": _memory,
    "collectives": _collectives,
    "parallel": _parallel,
    **dict.fromkeys(_FLAT, _flat),
}
"""Converters by the kind in the JSON."""
