"""What counts over the batch in backward only, so that no output of a rehearsal shows it."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ronde.boundary.guards import Refusal

__all__ = ["BackwardCounts"]


class BackwardCounts(TorchDispatchMode):
    """Stops an embedding that divides the gradient of a word by how often it is in the batch.

    A rank would divide by how often it is in its own rows. Frozen tables, and evaluation, divide nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        # Asked for around the model: inside a checkpoint gradients are off, and come all the same.
        self._grad = torch.is_grad_enabled()
        self.refused = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        place = _SWITCHES.get(func)
        if place is not None and len(args) > place and args[place] and self._grad and args[0].requires_grad:
            self.refused = "its backward counts how often a word is in the batch (scale_grad_by_freq=True)"
            raise Refusal(self.refused)
        return func(*args, **(kwargs or {}))


# Which argument of an operation is scale_grad_by_freq; the first is the table.
_SWITCHES = {
    torch.ops.aten.embedding.default: 3,
    torch.ops.aten._embedding_bag.default: 3,
}
