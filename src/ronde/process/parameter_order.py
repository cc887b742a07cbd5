"""Optimizers have their parameters in one order on all ranks: the main rank's.

`set(model.parameters())` has another order in every process, because it goes by address. Gradients would then
be averaged with those of other parameters. Which parameter is which on another rank is told by the order in
which they were made: all ranks run one script.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from ronde.patching.patches import Patches
from ronde.tensor.context import Context, Region

__all__ = ["ParameterOrder"]


class ParameterOrder:
    """Numbers parameters as they are made; one per session."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._count = itertools.count()
        self._numbers: Any = WeakTensorKeyDictionary()

    def install(self, patches: Patches) -> None:
        plain: Any = torch.nn.Parameter.__new__
        numbers, count, context = self._numbers, self._count, self._context

        def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
            made = plain(cls, *args, **kwargs)
            if context.on_main_thread():
                numbers[made] = next(count)
            return made

        patches.set(torch.nn.Parameter, "__new__", staticmethod(new))

    def agree(self, group: dict[str, Any]) -> None:
        """Put the parameters of a new group of an optimizer in the order that they have on the main rank.

        They are left alone where they are not the same parameters, or were made by other means.
        """
        if self._context.region is not Region.SCRIPT or not self._context.on_main_thread():
            return
        own = [self._numbers.get(parameter) for parameter in group["params"]]
        main = self._context.comm.broadcast_object(own)
        if own == main or None in own or set(own) != set(main):
            return
        places = {number: place for place, number in enumerate(own)}
        for name in ("params", "param_names"):
            if name in group:
                group[name][:] = [group[name][places[number]] for number in main]
