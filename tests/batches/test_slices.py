"""A rank's slice of a batch, where ranks train by themselves."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ronde.batches.slices import slice_of

ROWS = torch.arange(5)


@pytest.mark.parametrize(
    ("batch", "slices"),
    [
        (ROWS, [[0, 1], [2, 3, 4]]),
        ([ROWS, "name"], [[[0, 1], "name"], [[2, 3, 4], "name"]]),
        ({"x": ROWS, "y": torch.ones(3)}, [{"x": [0, 1], "y": [1, 1, 1]}, {"x": [2, 3, 4], "y": [1, 1, 1]}]),
        (("a", "b"), [["a", "b"], ["a", "b"]]),
    ],
)
def test_rows_are_cut_in_whatever_holds_them(batch: Any, slices: list[Any]) -> None:
    def plain(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.tolist()
        if isinstance(value, dict):
            return {key: plain(each) for key, each in value.items()}
        return [plain(each) for each in value] if isinstance(value, (list, tuple)) else value

    assert [plain(slice_of(batch, rank, 2)) for rank in range(2)] == slices
