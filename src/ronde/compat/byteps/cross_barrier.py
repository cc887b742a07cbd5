"""`byteps.torch.cross_barrier.CrossBarrier`: the next forward begins while gradients still travel.

A parameter is updated when the next call needs it, or when `step` comes again (Peng et al. 2019).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ronde.compat.horovod.operations import synchronize

__all__ = ["CrossBarrier"]


class CrossBarrier:
    """Stands for a `DistributedOptimizer`.

    Args:
        model: whose modules wait for their own parameters.
        byteps_opt: the optimizer; it updates parameters one by one.
        num_steps: taken, and not needed.
    """

    def __init__(self, model: nn.Module, byteps_opt: Any, num_steps: int = 10**6) -> None:
        self._optimizer = byteps_opt
        self._late: dict[int, tuple[torch.Tensor, Any]] = {}
        for module in model.modules():
            if any(True for _ in module.parameters(recurse=False)):
                module.register_forward_pre_hook(self._before)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)

    def step(self, closure: Any = None) -> None:
        """Have gradients applied as they arrive."""
        self._catch_up()
        optimizer = self._optimizer
        sent = optimizer._handles
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) in sent:
                    self._late[id(parameter)] = parameter, sent[id(parameter)]
        sent.clear()
        optimizer._delay = dict.fromkeys(optimizer._delay, optimizer.backward_passes_per_step)

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Gradients are let go of when they have been applied."""

    def state_dict(self) -> Any:
        self._catch_up()
        return self._optimizer.state_dict()

    def _catch_up(self) -> None:
        for key in list(self._late):
            self._apply(key)

    def _before(self, module: nn.Module, _: Any) -> None:
        for parameter in module.parameters(recurse=False):
            if id(parameter) in self._late:
                self._apply(id(parameter))

    def _apply(self, key: int) -> None:
        """Wait for one gradient, and update its parameter."""
        parameter, (handle, what) = self._late.pop(key)
        _, contexts = what
        optimizer = self._optimizer
        whole = optimizer._compression.decompress(synchronize(handle), contexts[0])
        parameter.grad = whole
        others = [group["params"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["params"] = [each for each in group["params"] if each is parameter]
        try:
            with torch.no_grad():
                type(optimizer).__mro__[2].step(optimizer)
        finally:
            for group, members in zip(optimizer.param_groups, others, strict=True):
                group["params"] = members
        parameter.grad = None
