"""A trial is told of what joins rows on purpose."""

from __future__ import annotations

import torch

from ronde.boundary.joint import Joints, row_by_row


def test_what_joins_rows_is_met_where_it_is_watched() -> None:
    x = torch.ones(3, 2)
    with Joints() as watched:
        copied = row_by_row(x)
    assert watched.met
    assert torch.equal(copied, x)
    assert copied.data_ptr() != x.data_ptr()


def test_other_operations_join_nothing() -> None:
    with Joints() as watched:
        torch.ones(3, 2).clone().sum(0)
    assert not watched.met
    row_by_row(torch.ones(3, 2))
    assert not watched.met
