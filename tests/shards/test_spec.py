"""Each way of cutting, as a value: shapes, own elements, and the tensor that shards make again."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ronde.policies.zero import MeshPosition, divided, in_equal_parts, zero_within
from ronde.shards.dim_cut import DimCut
from ronde.shards.partition import Partition
from ronde.shards.spec import ShardSpec, blocks, blocks_of_stage, owned, within

SHAPE = (6, 4)
PLACES = [MeshPosition(block, row, row) for row in range(2) for block in range(2)]


def _nested() -> ShardSpec:
    known, weight = Partition(), torch.nn.Parameter(torch.zeros(256, 4))
    known.decide(weight, blocks(DimCut(1, 2), weight.shape))
    (spec,) = zero_within(known, divided(in_equal_parts, 2), PLACES, in_equal_parts).assign([weight])
    assert spec is not None
    return spec


SPECS = {
    "flat": (ShardSpec(((0, 10), (10, 24))), SHAPE),
    "flat, one has none": (ShardSpec(((0, 24), None)), SHAPE),
    "owner": (owned(1, 3, 24), SHAPE),
    "rows": (ShardSpec(((0, 12), (12, 24)), row=4), SHAPE),
    "blocks of dim 0": (blocks(DimCut(0, 3), SHAPE), SHAPE),
    "blocks of dim 1": (blocks(DimCut(1, 2), SHAPE), SHAPE),
    "fused": (blocks(DimCut(0, 2, 3), SHAPE), SHAPE),
    "a stage's copies": (blocks_of_stage(1, 2, SHAPE, ranks=2), SHAPE),
    "a stage's blocks": (blocks_of_stage(0, 2, SHAPE, ranks=2, cut=DimCut(1, 2)), SHAPE),
    "ZeRO in blocks": (_nested(), (256, 4)),
}


@pytest.mark.parametrize("name", list(SPECS))
def test_a_tensor_is_gathered_from_its_shards(name: str):
    spec, shape = SPECS[name]
    whole = torch.arange(torch.Size(shape).numel(), dtype=torch.float64).view(shape)
    parts = [spec.own(whole, rank).clone() for rank in range(len(spec))]

    class Group:
        """Writes all shards where a collective would."""

        def __init__(self, rank: int) -> None:
            self.rank = rank

        def share(self, views: list[list[Any]]) -> None:
            for view, part in zip(views, parts, strict=True):
                for each in view:
                    each.copy_(part)

        def broadcast(self, value: torch.Tensor, owner: int) -> None:
            value.view(-1).copy_(parts[owner])

    for rank, part in enumerate(parts):
        gathered, group = torch.zeros_like(whole), Group(rank)
        spec.gather(group, part, gathered)  # pyright: ignore[reportArgumentType]
        assert torch.equal(gathered, whole), rank


def test_shapes_are_those_of_blocks():
    assert blocks(DimCut(1, 2), SHAPE).shape(SHAPE, 0) == [6, 2]
    assert blocks_of_stage(1, 2, SHAPE).shape(SHAPE, 1) == [6, 4]
    assert blocks_of_stage(1, 2, SHAPE).shape(SHAPE, 0) == [0]
    assert ShardSpec(((0, 10), (10, 24))).shape(SHAPE, 1) == [14]


def test_copies_are_known():
    assert blocks_of_stage(1, 2, SHAPE, ranks=2).has_copies
    assert not _nested().has_copies
    assert [blocks_of_stage(0, 1, SHAPE, ranks=2).is_first(rank) for rank in range(2)] == [True, False]


def test_copies_are_on_other_neighbours_and_not_on_ranks_of_a_tensor_group():
    both = blocks_of_stage(0, 1, SHAPE, ranks=4, cut=DimCut(0, 2))
    assert both.has_copies
    assert not both.of([0, 1]).has_copies
    assert both.of([0, 2]).has_copies
    assert both.of([1, 1, 0]).spans == ((12, 24), (12, 24), (0, 12))


def test_a_run_lies_within_another():
    assert within((5, 8), (2, 10)) == slice(3, 6)
    assert within(None, (2, 10)) == slice(0, 0)
