"""Report of a benchmark: rows of labels and samples, kept as JSON."""

from __future__ import annotations

import collections.abc
import dataclasses
import json
import typing
from collections.abc import Mapping
from typing import Any

from ronde.bench.machine import Machine

__all__ = ["FORM", "Quantity", "Report", "Result", "made_of"]

#: The number in the JSON of this form.
FORM = 2


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """Samples of one subject.

    Attributes:
        labels: the names of the subject, from the widest (a workload) to the narrowest (a contender).
        samples: the numbers of each quantity, one for each round.
    """

    labels: Mapping[str, str]
    samples: Mapping[str, tuple[float, ...]]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Quantity:
    """Presentation of a quantity; one without presentation is in the JSON only.

    Attributes:
        unit: the unit behind the name in a heading; "bytes" are shown with a prefix.
        spread: whether quartiles are shown beside the median.
        drawn: whether the picture has it.
    """

    unit: str = ""
    spread: bool = False
    drawn: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """One invocation of a benchmark.

    Attributes:
        kind: the name of the command.
        settings: the conditions that all rows share.
        quantities: the columns of the table, by name.
        notes: lines below the table.
    """

    kind: str
    machine: Machine
    settings: Mapping[str, str]
    quantities: Mapping[str, Quantity]
    results: tuple[Result, ...]
    notes: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Return every sample, and the machine."""
        return json.dumps({"form": FORM, **dataclasses.asdict(self)}, indent=2) + "\n"


def made_of(declared: Any, value: Any) -> Any:
    """Return the value of a declared type from its JSON.

    Raises:
        ValueError, TypeError, KeyError, AttributeError: the JSON has another type.

    >>> made_of(tuple[float, ...], [1.5, 2.5])
    (1.5, 2.5)
    """
    arguments, origin = typing.get_args(declared), typing.get_origin(declared)
    if dataclasses.is_dataclass(declared):
        types, made = typing.get_type_hints(declared), typing.cast("Any", declared)
        return made(**{name: made_of(types[name], each) for name, each in value.items()})
    if origin is tuple:
        return tuple(made_of(arguments[0], each) for each in value)
    if origin is collections.abc.Mapping:
        return {name: made_of(arguments[1], each) for name, each in value.items()}
    return value
