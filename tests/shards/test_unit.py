"""Whether anybody but its parameter holds on to the memory of a whole parameter."""

from __future__ import annotations

import torch
from torch import nn

from ronde.shards.copied_unit import CopiedMember
from ronde.shards.spec import ShardSpec


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
