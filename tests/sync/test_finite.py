"""Whether a rank's own gradient is finite: told by two of its elements."""

from __future__ import annotations

import math

import pytest
import torch

from ronde.sync.finite_check import GradientWatch


def told(gradient: torch.Tensor | None) -> list[bool]:
    leaf = torch.zeros(1 if gradient is None else gradient.shape, dtype=getattr(gradient, "dtype", None))
    leaf.requires_grad_()
    leaf.grad = gradient
    answers: list[bool] = []
    GradientWatch(answers.append)(leaf)
    return answers


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_told(dtype: torch.dtype, value: float) -> None:
    whole = torch.full((3, 4), value, dtype=dtype)
    assert told(whole) == [False]
    assert told(torch.full((3, 4), 1e-3, dtype=dtype)) == [True]
    last = torch.zeros(3, 4, dtype=dtype)
    last[-1, -1] = value
    assert told(last) == [False]


def test_what_cannot_be_read_tells_nothing() -> None:
    assert told(None) == []
    assert told(torch.zeros(0)) == []
    assert told(torch.zeros(4, 3).t()) == []
    assert told(torch.zeros(2, dtype=torch.float16)) == []
