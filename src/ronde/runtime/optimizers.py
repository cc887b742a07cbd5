"""Hooks around optimizers: gradients are reduced, steps counted, shards updated."""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ronde.patching.modes_first import modes_first
from ronde.patching.patches import Patches
from ronde.patching.stacks import ADD_PARAM_GROUP
from ronde.process.signals import HandledSignals
from ronde.runtime.memory.meter import MemoryMeter
from ronde.strategies.strategies import Strategies
from ronde.sync.reducer import Reducer
from ronde.tensor.context import Context
from ronde.trace.counters import Tally
from ronde.trace.step_clock import Activity

__all__ = ["Optimizers"]


class Optimizers:
    """Hooks into every optimizer of the script; one per session."""

    def __init__(
        self,
        context: Context,
        reducer: Reducer,
        strategies: Strategies,
        tally: Tally,
        memory: MemoryMeter,
        signals: HandledSignals,
    ) -> None:
        self._context = context
        self._reducer = reducer
        self._strategies = strategies
        self._tally = tally
        self._memory = memory
        self._signals = signals
        self._stepped: weakref.WeakSet[Any] = weakref.WeakSet()

    def install(self, patches: Patches) -> None:
        """Replace functions, and hook into steps; `patches` undoes both."""

        def around(plain: Callable[..., Any]) -> Callable[..., Any]:
            def add_param_group(optimizer: Any, param_group: Any) -> None:
                plain(optimizer, param_group)
                self._tally.know(optimizer)
                if self._context.on_main_thread():
                    self._reducer.adopt_all(optimizer)

            return add_param_group

        patches.layer(ADD_PARAM_GROUP, "reducer", around)
        patches.undo(register_optimizer_step_pre_hook(self._before_step).remove)
        patches.undo(register_optimizer_step_post_hook(self._after_step).remove)
        self._install_gradient_hooks(patches)

    def _before_step(self, optimizer: Any, *_: Any) -> None:
        if not self._context.on_main_thread():
            return  # there each rank trains whole parameters
        clock = self._context.clock
        before = clock.enter(Activity.OWN) if clock.armed else None
        self._signals.before_step()
        self._reducer.adopt_all(optimizer)
        self._strategies.state.before_step()
        self._tally.begin_step()
        what = f"{type(optimizer).__name__}.step"
        if optimizer not in self._stepped:
            self._stepped.add(optimizer)
            self._strategies.before_first_step(optimizer)
            what += f" (the first; sum of all parameters {_sum_of_parameters(optimizer):.6g})"
        self._context.comm.mark(f"{what}{_rates(optimizer)}")
        if before is not None:
            clock.enter(before)

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        if not self._context.on_main_thread():
            self._tally.step_beside()
            return
        self._tally.step(optimizer)
        self._memory.stepped(optimizer)

    def _install_gradient_hooks(self, patches: Patches) -> None:
        plain: Any = torch.Tensor.register_post_accumulate_grad_hook

        def register(tensor: Any, hook: Any) -> Any:
            """Register a hook after the reduction, which sees the gradient of the whole batch.

            An optimizer that steps in backward must not see the gradient of one rank's rows.
            """
            if not tensor.requires_grad or not tensor.is_leaf:
                return plain(tensor, hook)  # torch's own error
            if not self._context.on_main_thread():
                return plain(tensor, hook)
            self._reducer.adopt(tensor)
            return self._reducer.hooks.register(tensor, hook)

        patches.set(torch.Tensor, "register_post_accumulate_grad_hook", modes_first(register))


def _rates(optimizer: Any) -> str:
    """Describe the learning rates of an optimizer, for comparison between ranks.

    A thread or the clock of one rank may have changed them.
    """
    rates = [group.get("lr") for group in optimizer.param_groups]
    texts = [repr(float(rate)) for rate in rates if isinstance(rate, float)]
    if not texts:
        return ""
    several = f", ... (digest {zlib.crc32(' '.join(texts).encode()):08x})" if len(set(texts)) > 1 else ""
    return f" at lr {texts[0]}{several}"


def _sum_of_parameters(optimizer: Any) -> float:
    """Sum all parameters that have values, to detect ranks with different ones."""
    return sum(
        float(value.detach().sum())  # one after another, because each parameter in parts is gathered
        for group in optimizer.param_groups
        for value in group["params"]
        if not is_lazy(value) and _has_values(value)
    )


def _has_values(value: torch.Tensor) -> bool:
    return value.is_floating_point() and value.layout is torch.strided and not value.is_meta
