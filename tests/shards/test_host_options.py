"""What an optimizer has on a device besides its parameters, when it steps in host memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ronde.shards.host_options import as_on_device, can_step_on_host, options_on_host


class Far(torch.Tensor):
    """Says that it lies on a device."""

    device: Any = property(lambda _: torch.device("cuda"))

    def cpu(self, *_: Any, **__: Any) -> torch.Tensor:
        return self.as_subclass(torch.Tensor).clone()


def far(value: float) -> Any:
    return torch.tensor(value).as_subclass(Far)


def test_options_come_and_go_back() -> None:
    near = torch.tensor(0.9)
    optimizer: Any = torch.optim.Adam([nn.Parameter(torch.ones(2))], lr=0.1)
    group = optimizer.param_groups[0]
    group["lr"], group["eps"] = far(0.5), near
    optimizer.grad_scale, optimizer.found_inf, optimizer.own = far(8.0), far(0.0), far(1.0)
    before = group["lr"], optimizer.grad_scale, optimizer.found_inf
    with options_on_host(optimizer):
        for value in (group["lr"], optimizer.grad_scale, optimizer.found_inf):
            assert type(value) is torch.Tensor
        assert [float(group["lr"]), float(optimizer.grad_scale)] == [0.5, 8.0]
        assert group["eps"] is near
        assert type(optimizer.own) is Far  # the script's own, which torch's step does not know
    assert all(a is b for a, b in zip(before, (group["lr"], optimizer.grad_scale, optimizer.found_inf)))


def test_counts_of_steps_lie_where_plain_torch_has_them() -> None:
    def placed(kind: Any, **options: Any) -> list[str]:
        optimizer = kind([nn.Parameter(torch.ones(3))], **options)
        parameter = nn.Parameter(torch.empty(3, device="meta"))
        optimizer.param_groups[0]["params"] = [parameter]
        state = {parameter: {"step": torch.tensor(1.0), "ax": torch.ones(3)}}
        return [value.device.type for value in as_on_device(optimizer, state)[parameter].values()]

    assert placed(torch.optim.Adam) == ["cpu", "cpu"]
    assert placed(torch.optim.Adam, fused=True) == ["meta", "cpu"]
    assert placed(torch.optim.ASGD) == ["meta", "cpu"]


def test_what_torch_does_not_step_on_a_cpu() -> None:
    parameter = nn.Parameter(torch.ones(3))
    assert can_step_on_host(torch.optim.Adam([parameter]))
    assert not can_step_on_host(torch.optim.Adam([parameter], capturable=True))
    assert can_step_on_host(torch.optim.SGD([parameter], lr=0.1))
