"""Numbers that note what they decide."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from ronde.rowwise.changing_numbers import Notes, plain_number, without_notes


def _notes(value: Any) -> tuple[Notes, Any]:
    notes = Notes({})
    return notes, notes.of(value, 0)


def test_arithmetic_decides_nothing() -> None:
    notes, number = _notes(3)
    made = abs(-((2 * number + 1) / 2 - 10)) ** 2 % 7 // 1 * 0.5
    assert plain_number(made) == abs(-((2 * 3 + 1) / 2 - 10)) ** 2 % 7 // 1 * 0.5
    assert (notes.decisions, notes.opened) == ([], [])


def test_what_was_decided_holds_for_numbers_that_compare_alike() -> None:
    notes, step = _notes(7)
    assert not (step + 1 > 20)
    assert step % 2 == 1
    assert [all(each.holds_for([now]) for each in notes.decisions) for now in (9, 8, 19, 21)] == [
        True,
        False,
        True,
        False,
    ]
    assert not notes.opened


def test_what_two_numbers_decide_is_open() -> None:
    notes = Notes({})
    assert notes.of(1, 0) < notes.of(2.0, 1)
    assert notes.opened == ["lt"]


@pytest.mark.parametrize("ask", [int, round, hash, str, math.floor])
def test_what_else_is_asked_is_open(ask: Any) -> None:
    notes, number = _notes(3)
    assert ask(number) == ask(3)
    assert notes.opened


def test_truth_is_a_decision() -> None:
    notes, number = _notes(0.0)
    assert not number
    assert [notes.decisions[0].holds_for([now]) for now in (0.0, 0.5)] == [True, False]


def test_not_a_number_is_another_matter() -> None:
    notes, number = _notes(1.0)
    assert number < 2
    assert not notes.decisions[0].holds_for(["nan"])


def test_torch_is_given_plain_numbers() -> None:
    _, number = _notes(2.0)
    (_, given), _, steered = without_notes((torch.ones(2), number), {})
    assert type(given) is float
    assert steered
