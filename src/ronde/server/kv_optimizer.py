"""A `torch.optim` optimizer that servers run: class and current hyper-parameters."""

from __future__ import annotations

from typing import Any

import torch

from ronde.errors import UsageError
from ronde.server.dense_checks import STEPPED

__all__ = ["ServerOptimizer"]


class ServerOptimizer:
    """The description of an optimizer that is sent with each push.

    Args:
        optimizer: a class of `torch.optim`, or an optimizer.
        options: keyword arguments of the class.
        number: id of the optimizer's state on the servers.

    Raises:
        UsageError: servers cannot run it.
    """

    def __init__(self, optimizer: Any, options: dict[str, Any], number: int) -> None:
        kind = optimizer if isinstance(optimizer, type) else type(optimizer)
        name = kind.__name__
        if name not in STEPPED or getattr(torch.optim, name) is not kind:
            raise UsageError(
                f"KVStore.set_optimizer({name}): servers run {', '.join(STEPPED)} of torch.optim [R444]"
            )
        made: Any = optimizer if kind is not optimizer else kind([torch.zeros(1)], **options)
        if len(made.param_groups) != 1 or (kind is not optimizer and options):
            raise UsageError(
                f"KVStore.set_optimizer({name}): an optimizer has one group, and options go with a "
                "class [R444]"
            )
        self.number = number
        self.torch_optimizer: torch.optim.Optimizer = made
        self.told()

    def told(self) -> dict[str, Any]:
        """Return class and hyper-parameters as values for JSON."""
        group = self.torch_optimizer.param_groups[0]
        options = {
            name: value.item() if isinstance(value, torch.Tensor) else value
            for name, value in group.items()
            if name not in ("params", "param_names")
        }
        return {"optimizer": self.number, "class": type(self.torch_optimizer).__name__, "options": options}
