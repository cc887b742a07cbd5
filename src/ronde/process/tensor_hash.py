"""Hashes tensors by order of first use, not address: equal on all ranks.

`for p in set(parameters): optimizers[p].step()` follows addresses in plain python, so another order in every
process, and ranks would wait for each other in different steps. For strings Python has PYTHONHASHSEED, which
ranks are started with; this module does the same for tensors.
"""

from __future__ import annotations

import gc
import itertools
import weakref
from typing import Any

import torch

__all__ = ["number_tensors"]


def number_tensors() -> None:
    """Replace the hash of tensors, for the rest of the process.

    It cannot be undone, since a key of a dictionary must be found there again. For the same reason existing
    tensors keep their hash.
    """
    plain: Any = torch.Tensor.__hash__
    # Some tensors of an optimizer's state exist on one rank only, and must not shift the numbers of
    # parameters.
    of_parameters, of_others = itertools.count(0, 2), itertools.count(1, 2)
    numbers: dict[int, tuple[int, weakref.ref[torch.Tensor]]] = {}

    def keep(tensor: torch.Tensor, number: int) -> int:
        place = id(tensor)
        made = number, weakref.ref(tensor, lambda _: numbers.pop(place, None))
        return numbers.setdefault(place, made)[0]  # another thread may have been first

    def number(self: torch.Tensor) -> int:
        known = numbers.get(id(self))
        if known is not None:
            return known[0]
        count = of_parameters if isinstance(self, torch.nn.Parameter) else of_others
        # Spaced like addresses, because keys with equal hashes are compared, and a tensor has no truth value.
        return keep(self, hash((next(count),)))

    for each in gc.get_objects():
        if issubclass(type(each), torch.Tensor):
            keep(each, plain(each))
    torch.Tensor.__hash__ = number
