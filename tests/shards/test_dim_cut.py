"""Cuts of a tensor, and the order in which its elements travel."""

from __future__ import annotations

import pytest
import torch

from ronde.shards.dim_cut import DimCut


@pytest.mark.parametrize("cut", [DimCut(0, 2), DimCut(1, 2), DimCut(0, 2, 3), DimCut(1, 4, 1)])
def test_what_is_put_in_order_comes_back(cut: DimCut):
    whole = torch.arange(12.0 * 8).view(12, 8)
    elements = cut.in_order(whole)
    again = torch.empty_like(whole)
    cut.put_back(elements, again)
    assert torch.equal(again, whole)
    for rank, span in enumerate(cut.spans(whole.shape)):
        block = cut.block(whole, rank)
        assert list(block.shape) == cut.shape_of_block(whole.shape)
        assert torch.equal(elements[slice(*span)], block.reshape(-1))


def test_each_of_fused_matrices_is_cut():
    whole = torch.arange(12).view(12, 1)
    assert DimCut(0, 2, 3).block(whole, 1).flatten().tolist() == [2, 3, 6, 7, 10, 11]


def test_equal_blocks_are_asked_for():
    assert DimCut(0, 2).divides((6, 5))
    assert not DimCut(1, 2).divides((6, 5))
    assert not DimCut(0, 4, 3).divides((6, 5))
