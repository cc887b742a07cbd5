"""Numbers that note what they decide are numbers in all arithmetic."""

from __future__ import annotations

import math

import numpy
import pytest
import torch

from ronde.boundary.noted import noted


@pytest.mark.parametrize("number", [0.3, 3])
def test_arithmetic_with_a_tensor_on_either_side(number: float) -> None:
    decisions: list[str] = []
    value, x = noted(number, decisions), torch.arange(4.0) + 1
    for ours, plain in (
        (value * x, number * x),
        (x * value, x * number),
        (value - x, number - x),
        (x - value, x - number),
        (value / x, number / x),
        (value**x, number**x),
        ((1 - value) * x + value, (1 - number) * x + number),
    ):
        assert torch.equal(ours, plain)
    assert decisions == []


def test_an_int_and_a_float() -> None:
    decisions: list[str] = []
    assert float.__repr__(noted(2, decisions) * noted(0.5, decisions)) == "1.0"
    assert float.__repr__(0.5 * noted(3, decisions)) == "1.5"
    assert decisions == ["__mul__"]  # an int leaves it to the float


def test_what_an_array_makes_of_it_is_told_of() -> None:
    decisions: list[str] = []
    assert (noted(0.5, decisions) * numpy.ones(2)).tolist() == [0.5, 0.5]
    assert decisions == ["__mul__"]


def test_a_complex_root_is_told_of() -> None:
    decisions: list[str] = []
    assert noted(-1.0, decisions) ** 0.5 == (-1.0) ** 0.5
    assert decisions == ["__pow__"]


def test_a_comparison_is_told_of() -> None:
    decisions: list[str] = []
    assert noted(0.2, decisions) * 2 < 1
    assert decisions == ["__lt__"]
    assert math.floor(noted(2.5, decisions)) == 2
    assert decisions == ["__lt__", "__floor__"]
