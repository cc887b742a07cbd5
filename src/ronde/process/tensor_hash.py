"""Tensors hash by when that was first asked of them, not by their address: a set has one order on all ranks.

`for p in set(parameters): optimizers[p].step()` goes by address in plain python, so in another order in every
process, and ranks would meet in different steps. Python's own answer to the same trouble with texts is
PYTHONHASHSEED, which ranks are started with; this is the like for tensors.
"""

from __future__ import annotations

import gc
import itertools
import weakref
from typing import Any

import torch

__all__ = ["number_tensors"]


def number_tensors() -> None:
    """From now on, for as long as the process lives: what is in a dictionary must be found there again.

    For the same reason tensors that are there already keep their hash.
    """
    plain: Any = torch.Tensor.__hash__
    # Of what an optimizer keeps only some is a rank's own: that must not move the numbers of parameters.
    of_parameters, of_others = itertools.count(0, 2), itertools.count(1, 2)
    numbers: dict[int, tuple[int, weakref.ref[torch.Tensor]]] = {}

    def keep(tensor: torch.Tensor, number: int) -> int:
        place = id(tensor)
        made = number, weakref.ref(tensor, lambda _: numbers.pop(place, None))
        return numbers.setdefault(place, made)[0]  # another thread may have come first

    def number(self: torch.Tensor) -> int:
        known = numbers.get(id(self))
        if known is not None:
            return known[0]
        count = of_parameters if isinstance(self, torch.nn.Parameter) else of_others
        # As far from others as an address: what hashes alike is compared, and a tensor has no truth.
        return keep(self, hash((next(count),)))

    for each in gc.get_objects():
        if issubclass(type(each), torch.Tensor):
            keep(each, plain(each))
    torch.Tensor.__hash__ = number
