"""Keys of a plan: a name in the grammar, and a kind of value.

Each axis declares its keys as annotated dataclass fields. The grammar, the printing and the checks
all read this one declaration, and know a new value by it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable
from typing import Annotated, Any, Protocol, get_args, get_origin, get_type_hints

from ronde.errors import PlanError

__all__ = [
    "Choice",
    "Flag",
    "Integer",
    "Key",
    "Number",
    "Spelled",
    "ValueKind",
    "check_fields",
    "choice",
    "did_you_mean",
    "keys_of",
]


class ValueKind(Protocol):
    """A set of values, and their spelling in a plan."""

    @property
    def expected(self) -> str:
        """Describe the values in an error message: "one of a, b"."""
        ...

    def read(self, text: str) -> object:
        """Parse a value; raises `ValueError` where `text` spells none."""
        ...

    def write(self, value: Any) -> str:
        """The one canonical spelling of a value."""
        ...

    def holds(self, value: object) -> bool:
        """Return whether a value given from Python belongs to the set."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """One of a few words."""

    words: tuple[str, ...]

    @property
    def expected(self) -> str:
        return f"one of {', '.join(self.words)}"

    def read(self, text: str) -> str:
        if text not in self.words:
            raise ValueError(text)
        return text

    def write(self, value: str) -> str:
        return value

    def holds(self, value: object) -> bool:
        return isinstance(value, str) and value in self.words


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Integer:
    """A whole number with a least value.

    `open_word`, where there is one, spells None: the value that is settled later (`data=auto`).
    Without it, None only ever means that the key was not given.
    """

    at_least: int
    open_word: str | None = None

    @property
    def expected(self) -> str:
        number = f"a whole number from {self.at_least}"
        return number if self.open_word is None else f"{number}, or {self.open_word}"

    def read(self, text: str) -> int | None:
        if text == self.open_word:
            return None
        # int() also accepts "1_000", " 4" and digits of other scripts, but each value has one spelling.
        if not (text.isascii() and text.isdecimal()) or int(text) < self.at_least:
            raise ValueError(text)
        return int(text)

    def write(self, value: int | None) -> str:
        return str(value) if value is not None else str(self.open_word)

    def holds(self, value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and value >= self.at_least


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Number:
    """A positive, finite number; `open_word` as in `Integer`."""

    open_word: str | None = None

    @property
    def expected(self) -> str:
        return "a number above 0" if self.open_word is None else f"a number above 0, or {self.open_word}"

    def read(self, text: str) -> float | None:
        if text == self.open_word:
            return None
        value = float(text)
        if not self.holds(value):
            raise ValueError(text)
        return value

    def write(self, value: float | None) -> str:
        if value is None:
            return str(self.open_word)
        return str(int(value)) if float(value).is_integer() and value < 1e15 else repr(float(value))

    def holds(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return math.isfinite(value) and value > 0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Flag:
    """True or false."""

    @property
    def expected(self) -> str:
        return "true or false"

    def read(self, text: str) -> bool:
        if text not in ("true", "false"):
            raise ValueError(text)
        return text == "true"

    def write(self, value: bool) -> str:
        return "true" if value else "false"

    def holds(self, value: object) -> bool:
        return isinstance(value, bool)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """One key of one axis: `name` in the grammar, `field` in the dataclass."""

    name: str
    field: str
    kind: ValueKind
    default: Any

    def read(self, text: str) -> object:
        """Parse a value; raises a `PlanError` that names the nearest value."""
        try:
            return self.kind.read(text)
        except ValueError:
            raise PlanError(self._refusal(text)) from None

    def write(self, value: Any) -> str:
        """Spell the item `name=value` in its canonical form."""
        if value is None and not (isinstance(self.kind, Integer | Number) and self.kind.open_word):
            return f"{self.name} not set"
        return f"{self.name}={self.kind.write(value)}"

    def check(self, value: object) -> None:
        if not (self.kind.holds(value) or (value is None and self.default is None)):
            raise PlanError(self._refusal(value))

    def _refusal(self, value: object) -> str:
        hint = ""
        if isinstance(self.kind, Choice) and isinstance(value, str):
            hint = did_you_mean(value, self.kind.words)
        return f"{self.name}={value} is not a value of {self.name}{hint}; write {self.kind.expected} [R214]"


@dataclasses.dataclass(frozen=True, slots=True)
class Spelled:
    """Marks an axis' field as a key: `field: Annotated[TYPE, Spelled("name", kind)] = default`."""

    name: str
    kind: ValueKind


def choice(literal: Any) -> Choice:
    """Return the choice among the words of a `Literal` type."""
    return Choice(words=get_args(literal))


@functools.cache
def keys_of(axis: type) -> tuple[Key, ...]:
    """Return the keys of an axis' class, in printing order."""
    hints = get_type_hints(axis, include_extras=True)
    return tuple(_key(field, hints[field.name]) for field in dataclasses.fields(axis))


def _key(field: dataclasses.Field[Any], hint: Any) -> Key:
    assert get_origin(hint) is Annotated, f"{field.name} has no spelling in the grammar"
    spelled: Spelled = get_args(hint)[1]
    return Key(name=spelled.name, field=field.name, kind=spelled.kind, default=field.default)


def check_fields(axis: object) -> None:
    """Refuse a value that its key does not have; called in each axis' `__post_init__`."""
    for one in keys_of(type(axis)):
        one.check(getattr(axis, one.field))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `" (did you mean X?)"` for the nearest known word, or ""."""
    import difflib  # imported here, because only errors need it

    nearest = difflib.get_close_matches(word.lower().replace("_", "-"), list(known), n=1, cutoff=0.5)
    return f" (did you mean {nearest[0]}?)" if nearest else ""
