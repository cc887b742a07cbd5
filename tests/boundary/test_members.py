"""What an object holds is read without its class."""

from __future__ import annotations

import collections
from typing import Any

import pytest

from ronde.boundary.members import attributes, copied, entries, pairs


class Counted(list[int]):
    """A list that would be read from a file."""

    def __iter__(self) -> Any:
        raise OSError

    def __len__(self) -> int:
        raise OSError


class Named(dict[str, int]):
    def items(self) -> Any:
        raise OSError

    def __iter__(self) -> Any:
        raise OSError


class Slots:
    __slots__ = ("__hidden", "shown", "unset")

    def __init__(self) -> None:
        self.__hidden, self.shown = 1, 2

    def __getattribute__(self, name: str) -> Any:
        raise OSError


class More(Slots):
    def __init__(self) -> None:
        super().__init__()
        vars_of = object.__getattribute__(self, "__dict__")
        vars_of["more"] = 3


class Hiding:
    @property
    def __dict__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise OSError


@pytest.mark.parametrize(
    "value", [Counted([1, 2]), (1, 2), [1, 2], {1, 2}, frozenset((1, 2)), collections.deque((1, 2))]
)
def test_items_of_a_container(value: Any) -> None:
    assert entries(value) == [1, 2]


def test_a_dict_in_its_order() -> None:
    ordered = collections.OrderedDict(a=1, b=2)
    ordered.move_to_end("a")
    assert pairs(ordered) == [("b", 2), ("a", 1)] == [*copied(ordered).items()]
    assert pairs(Named(a=1)) == [("a", 1)] == [*copied(Named(a=1)).items()]


def test_attributes_and_slots() -> None:
    assert attributes(Slots()) == {"_Slots__hidden": 1, "shown": 2}
    assert attributes(More()) == {"_Slots__hidden": 1, "shown": 2, "more": 3}
    assert attributes(Hiding()) == attributes(3) == {}
