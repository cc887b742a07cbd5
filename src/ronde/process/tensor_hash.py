"""Tensors hash by when that was first asked of them, not by their address: a set has one order on all ranks.

`for p in set(parameters): optimizers[p].step()` goes by address in plain python, so in another order in every
process, and ranks would meet in different steps. Python's own answer to the same trouble with texts is
PYTHONHASHSEED, which ranks are started with; this is the like for tensors.
"""

from __future__ import annotations

import itertools
import weakref

import torch

__all__ = ["number_tensors"]


def number_tensors() -> None:
    """From now on, for as long as the process lives: what is in a dictionary must be found there again.

    For a process of its own, before any tensor of the script's is made.
    """
    # Of what an optimizer keeps only some is a rank's own: that must not move the numbers of parameters.
    of_parameters, of_others = itertools.count(0, 2), itertools.count(1, 2)
    numbers: dict[int, tuple[int, weakref.ref[torch.Tensor]]] = {}

    def number(self: torch.Tensor) -> int:
        place = id(self)
        known = numbers.get(place)
        if known is None:
            count = of_parameters if isinstance(self, torch.nn.Parameter) else of_others
            # As far from others as an address: what hashes alike is compared, and a tensor has no truth.
            apart = hash((next(count),))
            made = apart, weakref.ref(self, lambda _: numbers.pop(place, None))
            known = numbers.setdefault(place, made)  # another thread may have come first
        return known[0]

    torch.Tensor.__hash__ = number
