"""Which unit is taken to come next, and what happens to one that is not used."""

from __future__ import annotations

from typing import Any

from ronde.shards.prefetch import Prefetch


class Unit:
    def __init__(self, number: int) -> None:
        self.number = number
        self.whole = False
        self.did: list[str] = []

    def start(self) -> None:
        self.did.append("start")

    def rest(self) -> bool:
        self.did.append("rest")
        return self.number == 1


def in_order(prefetch: Prefetch, units: list[Any], *, backward: bool) -> None:
    prefetch.begin()
    for unit in units:
        prefetch.note(unit, backward=backward)


def test_what_followed_the_last_time_comes_next() -> None:
    units: list[Any] = [Unit(number) for number in range(3)]
    a, b, c = units
    prefetch = Prefetch()
    in_order(prefetch, units, backward=False)
    in_order(prefetch, units[::-1], backward=True)
    assert [prefetch.next_of(unit, backward=False) for unit in units] == [b, c, None]
    assert [prefetch.next_of(unit, backward=True) for unit in units] == [None, a, b]
    b.whole = True
    assert prefetch.next_of(a, backward=False) is None
    in_order(prefetch, [a, c], backward=False)
    assert prefetch.next_of(a, backward=False) is c
    prefetch.forget(c)
    assert prefetch.next_of(a, backward=False) is None


def test_a_unit_on_its_way_arrives_or_is_let_go_of() -> None:
    a: Any = Unit(0)
    b: Any = Unit(1)
    prefetch = Prefetch()
    moved: list[Any] = []
    prefetch.start(a)
    assert not prefetch.arrived(b)
    assert prefetch.arrived(a)
    assert prefetch.coming is None
    prefetch.abandon(moved.append)
    prefetch.start(b)
    prefetch.abandon(moved.append)
    assert (a.did, b.did, moved) == (["start"], ["start", "rest"], [b])
