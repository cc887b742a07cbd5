"""ZeRO within a block: the ranks that have the same block share its update."""

from __future__ import annotations

import torch

from ronde.policies.zero import MeshPosition, divided, in_equal_parts, on_first, replica_spec, zero_within
from ronde.shards.dim_cut import DimCut
from ronde.shards.partition import Partition
from ronde.shards.spec import ShardSpec, blocks, blocks_of_stage, owned

# Four ranks: two blocks, each on two of them.
PLACES = [MeshPosition(block, row, row) for row in range(2) for block in range(2)]


def test_a_block_is_divided_among_those_that_have_it():
    known = Partition()
    weight = torch.nn.Parameter(torch.arange(1024.0).view(2, 512))
    known.decide(weight, blocks(DimCut(0, 2), weight.shape))
    (spec,) = zero_within(known, divided(in_equal_parts, 2), PLACES, in_equal_parts).assign([weight])
    assert spec == ShardSpec(((0, 256), (512, 768), (256, 512), (768, 1024)), DimCut(0, 2))


def test_whole_parameters_are_divided_too_and_small_ones_by_their_neighbours():
    first, second = (torch.nn.Parameter(torch.zeros(128)) for _ in range(2))
    found = zero_within(Partition(), divided(in_equal_parts, 2), PLACES, in_equal_parts).assign(
        [first, second]
    )
    assert [each and each.spans for each in found] == [
        ((0, 128), (0, 128), None, None),
        (None, None, (0, 128), (0, 128)),
    ]


def test_a_tensor_with_other_blocks_now_is_divided_anew():
    known = Partition()
    weight = torch.nn.Parameter(torch.zeros(512))
    known.decide(weight, blocks_of_stage(1, 2, weight.shape))
    nested = zero_within(known, divided(in_equal_parts, 2), PLACES, in_equal_parts)
    assert nested.assign([weight]) == [ShardSpec((None, (0, 256), None, (256, 512)))]
    known.decide(weight, None)
    assert nested.spec(weight) is None
    assert nested.assign([weight]) == [ShardSpec(((0, 256), (0, 256), (256, 512), (256, 512)))]


def test_a_tensor_without_dimensions_is_not_divided():
    assert zero_within(Partition(), divided(in_equal_parts, 2), PLACES, in_equal_parts).assign(
        [torch.nn.Parameter(torch.zeros(()))]
    ) == [None]


def test_the_replicas_of_a_block_know_their_elements_of_it():
    known = Partition()
    weight = torch.nn.Parameter(torch.zeros(2, 512))
    known.decide(weight, blocks(DimCut(0, 2), weight.shape))
    (spec,) = zero_within(known, divided(in_equal_parts, 2), PLACES, in_equal_parts).assign([weight])
    assert spec is not None
    assert replica_spec(spec, (512, 1024), [1, 3]) == ShardSpec(((0, 256), (256, 512)))


def test_one_replica_may_own_all_of_a_block():
    known = Partition()
    weight = torch.nn.Parameter(torch.zeros(2, 512))
    known.decide(weight, blocks(DimCut(0, 2), weight.shape))
    (spec,) = zero_within(known, divided(on_first, 2), PLACES, on_first).assign([weight])
    assert spec == ShardSpec(((0, 512), (512, 1024), None, None), DimCut(0, 2))


def test_experts_on_one_rank_each_are_not_divided_but_other_parameters_are():
    known = Partition()
    expert, dense = torch.nn.Parameter(torch.zeros(512)), torch.nn.Parameter(torch.zeros(512))
    known.decide(expert, owned(1, 2, 512))
    of_expert, of_dense = zero_within(
        known, divided(in_equal_parts, 2), [MeshPosition(0, 0, 0), MeshPosition(1, 0, 1)], in_equal_parts
    ).assign([expert, dense])
    assert of_expert == ShardSpec((None, (0, 512)))
    assert of_dense == ShardSpec(((0, 256), (256, 512)))
