"""`byteps.torch.cross_barrier.CrossBarrier`: overlaps the next forward with communication.

A parameter is updated when the next forward needs it, or at the next `step` (Peng et al. 2019).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ronde.compat.byteps.basics import size
from ronde.compat.byteps.operations import DistributedOptimizer
from ronde.compat.horovod.compression import Compression
from ronde.compat.horovod.operations import synchronize

__all__ = ["CrossBarrier"]


def CrossBarrier(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    named_parameters: Any = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    num_steps: int = 10**6,
) -> Any:
    """Make a `DistributedOptimizer` with a `step` that does not wait. With one rank it is a plain one.

    Args:
        model: model with modules that wait for their own parameters; its `state_dict` waits for all.
        optimizer: optimizer to wrap; it updates parameters one by one.
        num_steps: number of the last step, which waits, so that parameters are final after it.
    """
    reducing = DistributedOptimizer(optimizer, named_parameters, compression, backward_passes_per_step)
    return reducing if size() == 1 else _CrossBarrier(model, reducing, num_steps)


class _CrossBarrier(torch.optim.Optimizer):
    """A wrapper of a `DistributedOptimizer` that defers each parameter's update."""

    def __init__(self, model: nn.Module, reducing: Any, num_steps: int) -> None:
        self._optimizer = reducing
        self._steps_left = num_steps
        # By parameter: the pending gradient, and a group with the options of that step.
        self._late: dict[int, tuple[Any, dict[str, Any]]] = {}
        for module in model.modules():
            if any(True for _ in module.parameters(recurse=False)):
                module.register_forward_pre_hook(self._before)
        model.register_state_dict_pre_hook(lambda *_: self._catch_up())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)

    def step(self, closure: Any = None) -> Any:
        """Finish late updates, and hand this step's gradients over to deferred updates."""
        loss = None if closure is None else closure()
        self._catch_up()
        optimizer = self._optimizer
        optimizer.send_missing()
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if sent := optimizer._handles.pop(id(parameter), None):
                    self._late[id(parameter)] = sent, {**group, "params": [parameter]}
        optimizer.set_backward_passes_per_step(optimizer.backward_passes_per_step)
        self._steps_left -= 1
        if not self._steps_left:
            self._catch_up()
        return loss

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """No-op: each gradient is dropped when it is applied."""

    def state_dict(self) -> Any:
        self._catch_up()
        return self._optimizer.state_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        self._catch_up()
        self._optimizer.load_state_dict(state_dict)

    def _catch_up(self) -> None:
        for key in list(self._late):
            self._apply(key)

    def _before(self, module: nn.Module, _: Any) -> None:
        for parameter in module.parameters(recurse=False):
            if id(parameter) in self._late:
                self._apply(id(parameter))

    def _apply(self, key: int) -> None:
        """Wait for one gradient, and update its parameter."""
        (handle, (_, contexts)), group = self._late.pop(key)
        (parameter,), optimizer = group["params"], self._optimizer
        parameter.grad = optimizer._compression.decompress(synchronize(handle), contexts[0])
        groups, optimizer.param_groups = optimizer.param_groups, [group]
        try:
            with torch.no_grad():
                type(optimizer).__mro__[2].step(optimizer)
        finally:
            optimizer.param_groups = groups
        parameter.grad = None
