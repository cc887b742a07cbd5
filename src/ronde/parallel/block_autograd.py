"""`torch.autograd.grad` and `backward(inputs=...)` of parameters with blocks.

They reach this rank's block of a parameter too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from ronde.parallel.tensor.cut_parameters import StandIns
from ronde.patching.modes_first import modes_first
from ronde.patching.patches import Patches
from ronde.patching.stacks import BACKWARD, GRAD
from ronde.tensor.autograd import ENGINE
from ronde.tensor.context import Context

__all__ = ["reach_blocks"]


def reach_blocks(
    patches: Patches,
    context: Context,
    stand_ins: StandIns,
    around_engine: Callable[[], AbstractContextManager[None]],
) -> None:
    """Patch `grad`, `backward` and the autograd engine.

    Args:
        context: context of the script; blocks exist for its main thread only.
        around_engine: context manager around every run of autograd's engine.
    """
    engine: Any = getattr(torch.autograd, ENGINE)

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        if not context.on_main_thread():
            return engine(*args, **kwargs)
        with around_engine():
            return engine(*args, **kwargs)

    def around_backward(plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def backward(tensors: Any, *args: Any, inputs: Any = None, **kwargs: Any) -> None:
            if inputs is not None:
                several = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)
                inputs = [*several, *(block.leaf for _, block in stand_ins.blocks(several))]
            plain(tensors, *args, inputs=inputs, **kwargs)

        return backward

    patches.set(torch.autograd, ENGINE, run_backward)
    patches.layer(GRAD, "model parallel", lambda plain: _grad_of_blocks(plain, stand_ins))
    patches.layer(BACKWARD, "model parallel", around_backward)


def _grad_of_blocks(plain: Callable[..., Any], stand_ins: StandIns) -> Callable[..., Any]:
    """Wrap `torch.autograd.grad` to add a block's contribution to its parameter's gradient."""
    asking = False

    @functools.wraps(plain)
    def grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal asking
        several = isinstance(inputs, (tuple, list))
        asked = list(inputs) if several else [inputs]
        found = [] if isinstance(inputs, dict) or asking else stand_ins.blocks(asked)
        if not found:
            return plain(outputs, inputs, *args, **kwargs)
        unused = kwargs.pop("allow_unused", None)
        leaves = [block.leaf for _, block in found]
        asking = True  # a sharded parameter causes a second call of this function
        try:
            results = list(plain(outputs, [*asked, *leaves], *args, allow_unused=True, **kwargs))
        finally:
            asking = False
        of_blocks = results[len(asked) :]
        del results[len(asked) :]
        for (place, block), part in zip(found, of_blocks, strict=True):
            if part is not None and block.spec.cut is not None:
                whole = stand_ins.gathered(block, part)
                results[place] = whole if results[place] is None else results[place] + whole
        if not unused and any(result is None for result in results):
            # torch's own error for unreachable inputs
            missing = [each for each, result in zip(asked, results, strict=True) if result is None]
            return plain(outputs, missing, *args, **kwargs)
        return tuple(results)

    return modes_first(grad)
