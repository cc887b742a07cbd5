"""A weak map by identity."""

from __future__ import annotations

import gc

import torch

from ronde.tensor.tensor_table import TensorTable


def test_values_are_kept_as_long_as_their_tensors():
    table: TensorTable[str] = TensorTable()
    first, second = torch.zeros(2), torch.zeros(2)
    table.set(first, "first")
    table.set(second, "second")
    table.set(first, "again")
    assert [*table.values()] == ["again", "second"]
    assert first in table
    assert torch.zeros(2) not in table
    del first
    gc.collect()
    assert [*table.values()] == ["second"]
    assert len(table) == 1
    assert table.pop(second) == "second"
    assert table.get(second) is None
    assert table.pop(second) is None
