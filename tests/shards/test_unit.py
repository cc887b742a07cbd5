"""Whether anybody but its parameter holds on to the memory of a whole parameter."""

from __future__ import annotations

from unittest import mock

import torch
from torch import nn

from ronde.comm.process_group import Comm
from ronde.shards.copied_unit import CopiedMember, CopiedUnit
from ronde.shards.spec import ShardSpec
from ronde.sync.memory_home import OnDevice


def test_a_parameter_that_nobody_looks_at_is_not_held() -> None:
    layer = nn.Linear(8, 8)
    optimizer = torch.optim.Adam(layer.parameters())
    member = CopiedMember(layer.weight, ShardSpec(((0, 32), (32, 64))), 0)
    layer.weight.register_post_accumulate_grad_hook(lambda _: None)
    layer(torch.ones(2, 8)).sum().backward()
    assert len(optimizer.param_groups) == 1
    assert not member.held
    row = layer.weight.data[0]
    assert member.held
    del row
    assert not member.held


def test_a_view_that_outlives_its_parameter_holds_it() -> None:
    layer = nn.Linear(8, 8)
    member = CopiedMember(layer.weight, ShardSpec(((0, 32), None)), 1)
    row = layer.weight.data[0]
    del layer
    assert member.ref() is None
    assert member.held
    del row
    assert not member.held


def test_a_view_of_a_block_is_older_than_what_a_script_writes_to_the_parameter() -> None:
    """The parts of a block are those of the parameter too."""
    group = mock.create_autospec(Comm, instance=True, world_size=1, rank=0)
    block, part = nn.Parameter(torch.zeros(4)), torch.ones(4)
    unit = CopiedUnit(0, [CopiedMember(block, ShardSpec(((0, 4),)), 0)], group, OnDevice(), [part])
    unit.gather()
    view = block.data[:2]
    unit.rest()
    assert unit.lingers
    part.fill_(2.0)
    unit.gather()
    assert block.tolist() == [2.0] * 4
    assert view.tolist() == [2.0] * 2
