"""Costs of a model's modules, counted in its first call, to balance stages.

Operations are counted, not timed: times differ between runs, so a model would be cut otherwise when it is
resumed, and on a busy host.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, final

import torch
from torch import nn
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

from ronde.comm.process_group import Comm
from ronde.parallel.holding import forwards
from ronde.patching.torch_internals import TorchDispatchMode, attention_on_cpu, pytree

__all__ = ["Counts", "UnitCosts", "counting"]

# torch's table lacks the CPU kernel.
_FLOPS = {
    **flop_registry,
    attention_on_cpu.overloadpacket: lambda query, key, value, *_, **__: sdpa_flop_count(
        query.shape, key.shape, value.shape
    ),
}
# Cost of an element that is read and written, relative to one operation of a matrix product.
_MOVED = 64.0


Counts = dict[nn.Module, float]
"""Operations by module, with all in it; only ratios count."""


@contextmanager
def counting(model: nn.Module) -> Iterator[Counts]:
    """Count operations of a model's modules inside the `with` block.

    Counts are complete at its end.
    """
    counter = _Counter()
    parts = [part for part in model.modules() if not isinstance(part, torch.jit.ScriptModule)]
    counts = dict.fromkeys(parts, 0.0)
    with forwards({part: _counted(part, part.forward, counter, counts) for part in parts}):
        yield counts


@final
class UnitCosts:
    """Counts for each model of a session, on which all ranks agree.

    Args:
        comm: all ranks.
    """

    def __init__(self, comm: Comm) -> None:
        self._comm = comm
        self._counted: weakref.WeakKeyDictionary[nn.Module, Counts] = weakref.WeakKeyDictionary()
        self._agreed: weakref.WeakKeyDictionary[nn.Module, Counts] = weakref.WeakKeyDictionary()

    def knows(self, model: nn.Module) -> bool:
        """Return whether a call of the model has been counted."""
        return model in self._counted

    @contextmanager
    def counting(self, model: nn.Module) -> Iterator[None]:
        """Count the operations of a model's modules inside the `with` block."""
        with counting(model) as counts:
            yield
        self._counted[model] = counts

    def agree(self, model: nn.Module) -> None:
        """Take the first rank's counts on all ranks. A collective."""
        counts = self._counted.get(model)
        if counts is not None and model not in self._agreed:
            told = self._comm.broadcast_object(list(counts.values()))
            self._agreed[model] = dict(zip(counts, told, strict=True))

    def of(self, model: nn.Module) -> Counts | None:
        """Return the counts that ranks have agreed on; None where nothing was counted."""
        return self._agreed.get(model)


class _Counter(TorchDispatchMode):
    """Counts operations while it is entered.

    Attributes:
        total: number of operations, a multiplication and an addition being two.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.total = 0.0
        self.entered = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not getattr(func, "is_view", False):
            made = (each for each in pytree.tree_leaves(result) if isinstance(each, torch.Tensor))
            self.total += _MOVED * sum(each.numel() for each in made)
            count = _FLOPS.get(getattr(func, "overloadpacket", None))
            if count is not None:
                self.total += count(*args, **kwargs, out_val=result)
        return result


def _counted(
    part: nn.Module, forward: Callable[..., Any], counter: _Counter, counts: Counts
) -> Callable[..., Any]:
    """Wrap the forward of a module to count its operations."""

    def counting(*args: Any, **kwargs: Any) -> Any:
        before = counter.total
        with ExitStack() as entered:
            if not counter.entered:
                # The innermost mode: outer modes may execute an operation more than once.
                entered.enter_context(counter)
                counter.entered = True
                entered.callback(setattr, counter, "entered", False)
            try:
                return forward(*args, **kwargs)
            finally:
                counts[part] += counter.total - before

    return counting
