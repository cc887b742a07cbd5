"""A trial is told of what joins rows on purpose."""

from __future__ import annotations

import torch

from ronde.modules.joint import Joint, Joints, row_by_row, without_batch


def test_what_joins_rows_is_met_where_it_is_watched() -> None:
    x = torch.ones(3, 2)
    with Joints() as watched:
        copied = row_by_row(x, True)
    assert watched.seen == [Joint((3, 2), keeps=True)]
    assert torch.equal(copied, x)
    assert copied.data_ptr() != x.data_ptr()


def test_other_operations_join_nothing() -> None:
    with Joints() as watched:
        torch.ones(3, 2).clone().sum(0)
    assert not watched.seen
    row_by_row(torch.ones(3, 2), False)
    assert not watched.seen


def test_what_is_as_large_for_fewer_rows_has_no_batch() -> None:
    weight, five, two = (Joint((size, 4), keeps=False) for size in (6, 5, 2))
    assert without_batch([weight, five], [weight, two]) == [weight]
    assert without_batch([weight], [weight, two]) == []
