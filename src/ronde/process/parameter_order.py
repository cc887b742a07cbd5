"""Optimizers have their parameters in one order on all ranks: that of rank 0.

`set(model.parameters())` has another order in every process, because it goes by address. Gradients would then
be averaged with those of other parameters. Which parameter is which on another rank is told by the order in
which they were made: all ranks run one script.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from ronde.comm.process_group import Comm
from ronde.patching.patches import Patches

__all__ = ["ParameterOrder"]


class ParameterOrder:
    """Numbers parameters as they are made; one per session.

    Args:
        in_script: whether the code that runs now is the script's, on all ranks.
    """

    def __init__(self, comm: Comm, on_main_thread: Callable[[], bool], in_script: Callable[[], bool]) -> None:
        self._comm = comm
        self._on_main_thread = on_main_thread
        self._in_script = in_script
        self._count = itertools.count()
        self._numbers: Any = WeakTensorKeyDictionary()

    def install(self, patches: Patches) -> None:
        plain: Any = torch.nn.Parameter.__new__
        numbers, count, on_main_thread = self._numbers, self._count, self._on_main_thread

        def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
            made = plain(cls, *args, **kwargs)
            if on_main_thread():
                numbers[made] = next(count)
            return made

        patches.set(torch.nn.Parameter, "__new__", staticmethod(new))

    def agree(self, group: dict[str, Any]) -> None:
        """Put the parameters of a new group of an optimizer in the order that they have on rank 0.

        They are left alone where they are not the same parameters, or were made by other means.
        """
        if not self._in_script():
            return
        own = [self._numbers.get(parameter) for parameter in group["params"]]
        first = self._comm.broadcast_object(own)
        if own == first or None in own or set(own) != set(first):
            return
        places = {number: place for place, number in enumerate(own)}
        for name in ("params", "param_names"):
            if name in group:
                group[name][:] = [group[name][places[number]] for number in first]
