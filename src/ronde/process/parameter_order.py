"""Sorts the parameters of optimizers as on rank 0.

An order by address, of parameters in a set say, differs between processes. Gradients would then be averaged
with those of other parameters, without a warning. Parameters of different ranks are matched by the order in
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
from ronde.patching.stacks import ADD_PARAM_GROUP

__all__ = ["install"]


def install(
    patches: Patches, comm: Comm, on_main_thread: Callable[[], bool], in_script: Callable[[], bool]
) -> None:
    """Sort each new parameter group, below other layers of `add_param_group`.

    A group stays as it is where ranks have different parameters, or parameters whose order of creation is
    unknown.

    Args:
        in_script: function that tells whether the current code is the script's, on all ranks.
    """
    numbers: Any = WeakTensorKeyDictionary()
    count = itertools.count()
    make: Any = torch.nn.Parameter.__new__

    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        made = make(cls, *args, **kwargs)
        if on_main_thread():
            numbers[made] = next(count)
        return made

    def around(plain: Callable[..., Any]) -> Callable[..., Any]:
        def add_param_group(optimizer: Any, param_group: Any) -> None:
            plain(optimizer, param_group)
            if not in_script():
                return
            group = optimizer.param_groups[-1]
            own = [numbers.get(parameter) for parameter in group["params"]]
            first = comm.broadcast_object(own)
            if own != first and None not in own and set(own) == set(first):
                for name in group.keys() & {"params", "param_names"}:
                    numbered = dict(zip(own, group[name], strict=True))
                    group[name][:] = [numbered[number] for number in first]

        return add_param_group

    patches.set(torch.nn.Parameter, "__new__", staticmethod(new))
    patches.layer(ADD_PARAM_GROUP, "order", around)
