"""ZeRO within a block: the ranks that have the same block share its update."""

from __future__ import annotations

import torch

from ronde.policies.zero import zero_within
from ronde.shards.dim_cut import DimCut
from ronde.shards.partition import Partition
from ronde.shards.spec import ShardSpec, blocks, blocks_of_stage

# Four ranks: two blocks, each on two of them.
PLACES = [(0, 0), (1, 0), (0, 1), (1, 1)]


def test_a_block_is_divided_among_those_that_have_it():
    known = Partition()
    weight = torch.nn.Parameter(torch.arange(1024.0).view(2, 512))
    known.decide(weight, blocks(DimCut(0, 2), weight.shape))
    (spec,) = zero_within(known, PLACES).assign([weight])
    assert spec == ShardSpec(((0, 256), (512, 768), (256, 512), (768, 1024)), DimCut(0, 2))


def test_whole_parameters_are_divided_too_and_small_ones_by_their_neighbours():
    first, second = (torch.nn.Parameter(torch.zeros(128)) for _ in range(2))
    found = zero_within(Partition(), PLACES).assign([first, second])
    assert [each and each.spans for each in found] == [
        ((0, 128), (0, 128), None, None),
        (None, None, (0, 128), (0, 128)),
    ]


def test_a_tensor_with_other_blocks_now_is_divided_anew():
    known = Partition()
    weight = torch.nn.Parameter(torch.zeros(512))
    known.decide(weight, blocks_of_stage(1, 2, weight.shape))
    divided = zero_within(known, PLACES)
    assert divided.assign([weight]) == [ShardSpec((None, (0, 256), None, (256, 512)))]
    known.decide(weight, None)
    assert divided.spec(weight) is None
    assert divided.assign([weight]) == [ShardSpec(((0, 256), (0, 256), (256, 512), (256, 512)))]


def test_a_tensor_without_dimensions_is_not_divided():
    assert zero_within(Partition(), PLACES).assign([torch.nn.Parameter(torch.zeros(()))]) == [None]
