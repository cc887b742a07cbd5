"""Whatever holds a number, text or flag, its contents tell when that is another one."""

from __future__ import annotations

import array
import collections
import configparser
import ctypes
import datetime
import decimal
import fractions
import functools
import pathlib
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from ronde.boundary.contents import contents, each_once, without_lengths


class Box:
    def __init__(self, **held: Any) -> None:
        self.__dict__.update(held)


def _nested(make: Callable[[Any], Any], times: int) -> Any:
    held = make(0)
    for _ in range(times):
        held = make(held)
    return held


def _innermost(held: Any, times: int, get: Callable[[Any], Any]) -> Any:
    for _ in range(times):
        held = get(held)
    return held


def _optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)


def _config() -> Any:
    made = configparser.ConfigParser()
    made["a"] = {"n": "0"}
    return made


def _local() -> Any:
    made = threading.local()
    made.n = 0
    return made


HOLDERS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "a large dict": (lambda: dict.fromkeys(range(300), 0), lambda held: held.update({299: 1})),
    "a large list": (lambda: [0] * 300, lambda held: held.__setitem__(299, 1)),
    "a large array": (lambda: numpy.zeros(300), lambda held: held.fill(1)),
    "an array of objects": (
        lambda: numpy.array([0, None], dtype=object),
        lambda held: held.__setitem__(0, 1),
    ),
    "cells": (lambda: array.array("d", [0]), lambda held: held.__setitem__(0, 1.0)),
    "bytes": (lambda: bytearray(1), lambda held: held.__setitem__(0, 1)),
    "a number of C": (lambda: ctypes.c_int(0), lambda held: setattr(held, "value", 1)),
    "a span of time": (
        lambda: [datetime.timedelta(0)],
        lambda held: held.__setitem__(0, datetime.timedelta(1)),
    ),
    "a day": (
        lambda: [datetime.date(2020, 1, 1)],
        lambda held: held.__setitem__(0, datetime.date(2020, 1, 2)),
    ),
    "a decimal": (lambda: [decimal.Decimal(0)], lambda held: held.__setitem__(0, decimal.Decimal("sNaN"))),
    "a fraction": (
        lambda: [fractions.Fraction(0)],
        lambda held: held.__setitem__(0, fractions.Fraction(1, 2)),
    ),
    "a path": (lambda: [pathlib.Path("0")], lambda held: held.__setitem__(0, pathlib.Path("1"))),
    "a slice": (lambda: [slice(0, 0)], lambda held: held.__setitem__(0, slice(0, 1))),
    "a thread's own": (_local, lambda held: setattr(held, "n", 1)),
    "the parser of settings": (_config, lambda held: held["a"].__setitem__("n", "1")),
    "an optimizer": (_optimizer, lambda held: held.param_groups[0].__setitem__("lr", 0.2)),
    "a schedule": (
        lambda: torch.optim.lr_scheduler.ConstantLR(_optimizer()),
        lambda held: setattr(held, "last_epoch", 5),
    ),
    "a dict in dicts": (
        lambda: _nested(lambda held: {"held": held}, 6),
        lambda held: _innermost(held, 6, lambda held: held["held"]).update(held=1),
    ),
    "an object in objects": (
        lambda: _nested(lambda held: Box(held=held), 8),
        lambda held: setattr(_innermost(held, 8, lambda held: held.held), "held", 1),
    ),
}


@pytest.mark.parametrize("name", HOLDERS)
def test_another_number_is_seen(name: str) -> None:
    make, change = HOLDERS[name]
    held = make()
    before = contents(held)
    assert contents(held) == before
    change(held)
    assert contents(held) != before
    assert hash(contents(held)) is not None


def test_a_cache_tells_that_it_is_filled_and_what_is_there_once() -> None:
    @functools.lru_cache
    def state() -> dict[str, int]:
        return {"n": 0}

    @functools.cache
    def table(rows: int) -> float:
        return 1 / rows

    before = contents(state)
    state()
    filled = contents(state)
    state()["n"] += 1
    assert len({before, filled, contents(state)}) == 3
    table(4)
    filled = contents(table)
    table(5)  # of which another rank is not asked
    assert contents(table) == filled


@pytest.mark.parametrize("make", [list, collections.deque])
def test_a_length_is_told_where_it_is_asked_for(make: Any) -> None:
    few, more = make([torch.zeros(1)] * 2), make([torch.zeros(1)] * 3)
    assert contents(few) == contents(more)
    told, longer = contents(few, lengths=True), contents(more, lengths=True)
    assert told != longer
    assert without_lengths(told) == without_lengths(longer)
    assert without_lengths(told) != without_lengths(contents(make(), lengths=True))


def test_parameters_are_told_alike_whatever_class_they_have_meanwhile() -> None:
    class Part(torch.nn.Parameter):
        pass

    whole, part = torch.nn.Parameter(torch.ones(2)), Part(torch.ones(2))
    assert contents(Box(held=[weakref.ref(whole)])) == contents(Box(held=[weakref.ref(part)]))
    assert contents(whole) == contents(part)


def test_what_leads_back_to_itself_ends() -> None:
    first, second = Box(n=0), Box(n=0)
    first.other, second.other = second, first
    for _ in range(9):
        first = Box(inner=first)
    before = each_once([first, second])
    assert hash(tuple(before)) == hash(tuple(each_once([first, second])))
    second.n = 1
    assert each_once([first, second]) != before


def test_a_vocabulary_is_not_looked_into() -> None:
    assert contents({f"word {number}": number for number in range(50_000)}) == (dict, True)
