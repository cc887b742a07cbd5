"""What stands in a copy of a model for something that a trial must not use: a use ends the trial."""

from __future__ import annotations

from typing import Any, NoReturn

from ronde.boundary.guards import irrevocable

__all__ = ["Untouched", "used"]


class Untouched:
    """Refuses to be asked, called or changed; by identity it is another than None.

    Attributes:
        refused: why the model must not be cut, once it was used: code of the user's may catch what is raised.
    """

    __slots__ = ("refused", "what")

    def __init__(self, what: str) -> None:
        object.__setattr__(self, "what", what)
        object.__setattr__(self, "refused", "")

    def __getattribute__(self, name: str) -> Any:
        return _refuse(self)


def used(value: Untouched) -> str:
    """Why the model must not be cut, if this was used; "" otherwise."""
    return object.__getattribute__(value, "refused")


def _refuse(self: Untouched, *_: Any, **__: Any) -> NoReturn:
    refusal = irrevocable(object.__getattribute__(self, "what"))
    object.__setattr__(self, "refused", str(refusal))
    raise refusal


for _name in (
    *("bool", "len", "iter", "next", "getitem", "setitem", "delitem", "contains", "call", "enter", "exit"),
    *("setattr", "delattr", "str", "repr", "format", "int", "float", "index"),
    *("eq", "ne", "lt", "le", "gt", "ge", "hash"),
):
    setattr(Untouched, f"__{_name}__", _refuse)
