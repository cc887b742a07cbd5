"""Parse a plain command line of `ronde run` without the import of typer.

The import takes a tenth of a second.

The options are those that the command's function declares for typer. Special cases (help, a mistake, another
launcher's options, an abbreviation) are left to typer.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

__all__ = ["parse_plain"]

# Settings of an option that do not change how its value is read.
_KNOWN_SETTINGS = {"metavar", "help", "show_default", "min", "max", "rich_help_panel"}
_NUMBERS = {int: re.compile(r"\d{1,18}"), float: re.compile(r"\d{1,18}(\.\d+)?")}


@dataclasses.dataclass(frozen=True, eq=False)  # Python 3.10 hashes metadata of annotations
class _Declaration:
    """Arguments of `typer.Option` or `typer.Argument`."""

    names: tuple[str, ...]
    settings: Mapping[str, Any]

    @classmethod
    def record(cls, *names: str, **settings: Any) -> _Declaration:
        return cls(names, settings)


class _Typer:
    """Stand-in for the module `typer` while annotations are evaluated."""

    Option = Argument = staticmethod(_Declaration.record)


def parse_plain(function: Callable[..., Any], words: Sequence[str]) -> dict[str, Any] | None:
    """Parse words into keyword arguments; None if typer has to do it.

    Args:
        function: a command whose first parameters are `script` and `arguments`, and whose others are options.
        words: words after the command's name.
    """
    options, given, place = _options(function), {}, 0
    while place < len(words) and words[place].startswith("-"):
        name, equals, value = words[place].partition("=")
        place += 1
        parameter, kind, settings = options.get(name, ("", None, {}))
        if kind is None or parameter in given or (equals and not name.startswith("--")):
            return None
        if kind is bool:
            value = None if equals else True
        else:
            if not equals:
                value = words[place] if place < len(words) else "-"
                place += 1
            value = _value(kind, value, settings)
        if value is None:
            return None
        given[parameter] = value
    if place == len(words) or "--" in words:
        return None
    script, *arguments = words[place:]
    if not given.get("module") and not script.endswith(".py"):
        return None
    return {**given, "script": script, "arguments": arguments}


def _options(function: Callable[..., Any]) -> dict[str, tuple[str, Any, Mapping[str, Any]]]:
    """Return parameter, type and settings of each option, by its names."""
    names = {**function.__globals__, "typer": _Typer}
    found = {}
    for parameter, hint in get_type_hints(function, names, include_extras=True).items():
        if get_origin(hint) is not Annotated or parameter in ("script", "arguments"):
            continue
        kind, declaration = get_args(hint)
        if isinstance(kind, UnionType):
            kind = next(each for each in get_args(kind) if each is not type(None))
        for name in declaration.names or (f"--{parameter.replace('_', '-')}",):
            found[name] = parameter, kind, declaration.settings
    return found


def _value(kind: Any, text: str, settings: Mapping[str, Any]) -> Any:
    """Convert the value of an option; None if typer has to do it."""
    if text.startswith("-") or not set(settings) <= _KNOWN_SETTINGS:
        return None
    if kind in (str, Path):
        return kind(text)
    if kind == list[str]:
        return [text]
    if kind not in _NUMBERS or not _NUMBERS[kind].fullmatch(text):
        return None
    number = kind(text)
    fits = settings.get("min", number) <= number <= settings.get("max", number)
    return number if fits else None
