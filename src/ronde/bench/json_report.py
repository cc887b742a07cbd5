"""Reports of `ronde bench` as JSON: the fields of their dataclasses, and figures that are made of these."""

from __future__ import annotations

import collections.abc
import dataclasses
import json
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from ronde.errors import UsageError

__all__ = ["made_of", "parsed", "written"]

Made = TypeVar("Made")

# Words in the JSON that are not fields: the kind of most reports, and what is computed from fields.
_BESIDE = ("kind", "figures")


def written(kind: str, report: Any, figures: Callable[[Any], Mapping[str, Any]] | None = None) -> str:
    """Return the JSON of a report, a dataclass with `results` among its fields.

    Args:
        figures: computes what readers of the JSON want to see beside the fields of one result.
    """
    fields = {"kind": kind, **dataclasses.asdict(report)}
    if figures is not None:
        for result, described in zip(report.results, fields["results"], strict=True):
            described["figures"] = figures(result)
    return json.dumps(fields, indent=2) + "\n"


def parsed(made: type[Made], text: str, kinds: Collection[str]) -> Made:
    """Return the report of class `made` that `written` wrote.

    Args:
        kinds: the words in the JSON of reports.

    Raises:
        UsageError: the text is something else, or an earlier version has written it.
    """
    try:
        return made_of(made, json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError):
        raise _unreadable(text, kinds) from None


def made_of(declared: Any, value: Any) -> Any:
    """Return the value of a declared type whose JSON this is.

    Raises:
        ValueError, TypeError, KeyError, AttributeError: it is not of that type.

    >>> made_of(tuple[float, ...], [1.5, 2.5])
    (1.5, 2.5)
    """
    arguments, origin = typing.get_args(declared), typing.get_origin(declared)
    if dataclasses.is_dataclass(declared):
        types = typing.get_type_hints(declared)
        given = {name: each for name, each in value.items() if name in types or name not in _BESIDE}
        made: Any = declared
        return made(**{name: made_of(types[name], each) for name, each in given.items()})
    if origin is tuple:
        return tuple(made_of(arguments[0], each) for each in value)
    if origin is collections.abc.Mapping:
        return {name: made_of(arguments[1], each) for name, each in value.items()}
    if type(None) in arguments and value is not None:
        return made_of(arguments[0], value)
    return value


def _unreadable(text: str, kinds: Collection[str]) -> UsageError:
    """The error for a file with this content: a report of an earlier version, or something else."""
    try:
        fields = json.loads(text)
    except ValueError:
        fields = None
    if isinstance(fields, dict) and fields.get("kind") in kinds and "results" in fields:
        kind = fields["kind"]
        return UsageError(
            f"this report of ronde bench {kind} has an older form, which this version does not read; measure "
            f"anew: ronde bench {kind} --json FILE [R850]"
        )
    return UsageError("this is not a report of ronde bench; give a file that --json has written [R850]")
