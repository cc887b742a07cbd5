"""The layer around the script's backward: comparison, loss scaling, gradient reduction."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from ronde.errors import RondeError
from ronde.modules.calls import Calls
from ronde.parallel.compute.loss_scaling import LossScaling
from ronde.patching.patches import Patches
from ronde.patching.stacks import BACKWARD
from ronde.rowwise.verdict import MixesRows
from ronde.runtime.memory.meter import MemoryMeter
from ronde.strategies.strategies import Strategies
from ronde.sync.reducer import Reducer
from ronde.tensor import loss_scale
from ronde.tensor.context import Region
from ronde.tensor.deferred import root
from ronde.tensor.fingerprint import compare_losses
from ronde.tensor.global_tensor import materialize
from ronde.tensor.graph import Reached, crosses_ranks, reached
from ronde.trace.step_clock import Activity

__all__ = ["Backward"]


class Backward:
    """Replacement for `torch.autograd.backward`; one per session.

    Args:
        scaling: scaling of a loss into the range of float16; None where nothing computes in it.
        on_backward: callback before each backward of the script.
    """

    def __init__(
        self,
        calls: Calls,
        reducer: Reducer,
        strategies: Strategies,
        memory: MemoryMeter,
        scaling: LossScaling | None,
        on_backward: Callable[[], None],
    ) -> None:
        self._on_backward = on_backward
        self._calls, self._context = calls, calls.context
        self._reducer = reducer
        self._strategies = strategies
        self._memory = memory
        self._scaling = scaling

    def install(self, patches: Patches) -> None:
        patches.layer(BACKWARD, "reducer", self._layer)

    def _layer(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        calls, context = self._calls, self._context
        reducer, memory = self._reducer, self._memory
        clock = context.clock

        def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
            if context.region is Region.OBSERVED:
                raise MixesRows("its forward runs backward [R339]")
            if not context.on_main_thread():
                if crosses_ranks(tensors):
                    raise RondeError(
                        "backward of a loss over ranks was called in another thread than the script's main "
                        "one, where ranks are not in step; call it in the main thread [R374]"
                    )
                return plain(tensors, grad_tensors, *args, **kwargs)
            before = clock.enter(Activity.OWN) if clock.armed else None
            nested = reducer.busy
            if not nested:
                self._on_backward()
            if context.compares:
                compare_losses(context, tensors)
            tensors, grad_tensors = _whole(tensors, root), _whole(grad_tensors, materialize)
            # Gradients have a separate group, so ranks would not be compared here without this mark. The
            # backward of a checkpoint inside backward is not compared: with other rows it may have more or
            # fewer pieces.
            if not nested:
                context.comm.mark("backward")
            divide = context.gradient_factor == 1 and not nested
            lossy = divide and context.world_size > 1
            scaled = self._scaling is not None and self._scaling.active
            leaves = reached(tensors, torch.float16) if lossy or scaled else []
            graph = bool(args[1] if len(args) > 1 else kwargs.get("create_graph"))
            if memory.armed and not nested:
                memory.begin_backward()
            with self._scaled(leaves) as scale:
                divisor = (context.world_size if divide else 1) / scale
                if divisor != 1:
                    grad_tensors = loss_scale.divided(tensors, grad_tensors, divisor)
                casts = {id(each.leaf): (each.narrow, each.otherwise) for each in leaves} if lossy else None
                reduced = reducer.backward(
                    divided=context.world_size if divide else 1, graph=graph, casts=casts
                )
                with self._whole_leaves(leaves if lossy else []), self._strategies.around_backward(), reduced:
                    work = functools.partial(plain, tensors, grad_tensors, *args, **kwargs)
                    if context.region is Region.SCRIPT:
                        context.attempt(work, reducer.settle, sends=self._strategies.sends_gradients)
                    else:
                        work()
            calls.tally.backward()
            if before is not None:
                clock.enter(before)

        return backward

    def _scaled(self, leaves: list[Reached]) -> AbstractContextManager[float]:
        scaling = self._scaling
        return nullcontext(1.0) if scaling is None else scaling.backward([each.leaf for each in leaves])

    def _whole_leaves(self, leaves: list[Reached]) -> AbstractContextManager[None]:
        if not leaves:
            return nullcontext()
        blocks = self._strategies.state.parameters_of_leaves()
        averaged = {*blocks, *blocks.values()}
        alike = [
            each.leaf
            for each in leaves
            if id(each.leaf) not in averaged and not self._reducer.averages(each.leaf)
        ]
        return loss_scale.multiplied(alike, self._context.world_size) if alike else nullcontext()


def _whole(value: Any, convert: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value)(_whole(item, convert) for item in value)
    return materialize(convert(value))
