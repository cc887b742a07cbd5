"""Reports whose JSON is their fields: written and read in one way."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ronde.bench.machine import Machine
from ronde.bench.reading import reading

__all__ = ["read", "written"]

Made = TypeVar("Made")


def written(kind: str, report: Any) -> str:
    """The JSON of a report, a dataclass with `machine` and `results` among its fields."""
    return json.dumps({"kind": kind, **dataclasses.asdict(report)}, indent=2) + "\n"


def read(kind: str, text: str, made: Callable[..., Made], result: Callable[[Mapping[str, Any]], Any]) -> Made:
    """The report that `written` wrote; lists become tuples.

    Args:
        kind: the word in its JSON.
        made: the report's class.
        result: makes one of its `results` of its fields.

    Raises:
        UsageError: for anything else, and for what an earlier version wrote.
    """
    with reading(text, kind):
        fields = json.loads(text)
        fields.pop("kind")
        machine, results = Machine(**fields.pop("machine")), tuple(map(result, fields.pop("results")))
        plain = {name: tuple(each) if isinstance(each, list) else each for name, each in fields.items()}
        return made(machine=machine, results=results, **plain)
