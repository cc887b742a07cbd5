"""A number of rows counts while a call is observed, and is a plain int afterwards."""

from __future__ import annotations

import copy
import functools
import operator
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ronde.rowwise.rows_int import RowCounts, RowsInt, Unhashable, is_counted
from ronde.rowwise.verdict import COUNTS, MixesRows
from rowwise.one_rank import observe
from rowwise.rowwise_cases import Written, linear, table

OPERATORS = {
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "floordiv", "mod", "truediv", "pow")},
    **{name: getattr(operator, name) for name in ("and_", "or_", "xor", "lshift", "rshift")},
    **{name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")},
    "divmod": divmod,
}
CONVERSIONS: list[Callable[[Any], Any]] = [
    *(int, float, str, repr, round, abs, bool, hash),
    *(operator.neg, operator.pos, operator.invert, "{:03}".format, copy.deepcopy),
    lambda number: pickle.loads(pickle.dumps(number)),
]


def rows(times: int = 1) -> RowsInt:
    return RowsInt(RowCounts.of(8, 4), lambda rows: rows * times)


@pytest.mark.parametrize("name", OPERATORS)
def test_is_a_plain_number_once_the_call_is_over(name: str) -> None:
    number = rows()
    number.counts.over = True
    for other in (3, 4, 5):
        assert OPERATORS[name](number, other) == OPERATORS[name](4, other)
        assert OPERATORS[name](other, number) == OPERATORS[name](other, 4)
    assert OPERATORS[name](number, number) == OPERATORS[name](4, 4)


@pytest.mark.parametrize("convert", CONVERSIONS)
def test_is_converted_as_a_plain_number_once_the_call_is_over(convert: Callable[[Any], Any]) -> None:
    number = rows()
    number.counts.over = True
    assert not is_counted(number)
    assert convert(number) == convert(4)


def test_of_a_call_that_is_over_is_a_constant_in_another() -> None:
    before, now = rows(2), rows()
    before.counts.over = True
    assert (now + before).at(3) == 11
    with pytest.raises(MixesRows):  # 4 rows here are 4 * 2 no more than the 8 of the whole batch are
        _ = now == before
    assert now.counts.problem == COUNTS


def test_has_no_hash_and_no_digits_while_it_counts() -> None:
    number = rows()
    with pytest.raises(Unhashable):
        hash(number)
    assert not number.counts.problem  # einops computes without its cache
    for read in (divmod, operator.and_, operator.rshift):
        with pytest.raises(MixesRows):
            read(number, 2)


CACHED: dict[str, Callable[[list[Any]], Any]] = {
    "cache of a function": lambda made: functools.cache(lambda size: size),
    "set": lambda made: {8}.__contains__,
    "list that nobody names": lambda made: made.append,
}


@pytest.mark.parametrize("name", CACHED)
def test_what_keeps_or_looks_up_a_number_runs_in_parts(name: str) -> None:
    made: list[Any] = []
    held = {"call": CACHED[name](made)}

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        held["call"](len(x))
        return self.layer(x)

    module = Written(forward, layer=linear())
    assert not observe(module, (table(),)).verdict.sharded
    assert made in ([], [8])
    assert {8: "plain"}[made[0]] == "plain" if made else True
