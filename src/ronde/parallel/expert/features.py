"""Experts cut over a tensor group: each rank has some features, and a summand.

The forward of the experts' module runs as it is, on blocks of its parameters and on all tokens. So it may be
written in any way that is linear after the second matrix; the first call checks that.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, final

import torch
from torch import nn

from ronde.parallel.expert.trial import alike, try_call
from ronde.parallel.holding import holding
from ronde.patching.patches import Patches
from ronde.patching.stacks import MODULE_CALL
from ronde.policies.expert_features import feature_cuts
from ronde.tensor.context import Context
from ronde.tensor.edges import Scatter, Share
from ronde.tensor.global_tensor import GlobalTensor, gathered, materialize
from ronde.tensor.rules.common import enter, is_sharded, rewrap, sum_ranks
from ronde.tensor.tree import leaves, map_leaves

__all__ = ["FeatureExperts"]


@final
class FeatureExperts:
    """Runs modules that hold blocks of all experts; one per session."""

    def __init__(self) -> None:
        # Whether the sum over ranks is one device's output, by module.
        self._tried: weakref.WeakKeyDictionary[nn.Module, bool] = weakref.WeakKeyDictionary()

    def install(self, patches: Patches) -> None:
        patches.layer(MODULE_CALL, "features", self._layer)

    def _layer(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            context = _held_in(module)
            if context is None or _is_cut_elsewhere(context, (args, kwargs)):
                return plain(module, *args, **kwargs)

            def run(given: Any) -> Any:
                args, kwargs = given
                return plain(module, *args, **kwargs)

            given = args, kwargs
            if module not in self._tried:
                self._tried[module] = _is_sum(context, module, run, given)
            return _summed(context, module, run, given) if self._tried[module] else run(given)

        return call


def _held_in(module: nn.Module) -> Context | None:
    """Return the tensor group that has cut a module's experts, or None."""
    second = module._parameters.get("down_proj")
    if not isinstance(second, GlobalTensor) or second._local is None or second.dim() != 3:
        return None
    context = second._context
    cuts = feature_cuts(module, context.world_size)
    held = all(_is_block(context, module._parameters[name], cut) for name, cut in cuts.items())
    return context if cuts and held else None


def _is_block(context: Context, parameter: Any, cut: Any) -> bool:
    if cut is None:
        return not isinstance(parameter, GlobalTensor)
    return is_sharded(parameter, context) and parameter._layout == cut.layout(parameter.shape)


def _is_cut_elsewhere(context: Context, call: Any) -> bool:
    """Return whether an argument is cut over other ranks."""
    return any(isinstance(each, GlobalTensor) and each._context is not context for each in leaves(call))


def _is_sum(context: Context, module: nn.Module, run: Callable[[Any], Any], call: Any) -> bool:
    """Return whether ranks compute summands of the output. A collective of the tensor group."""
    expected, _ = try_call(module, lambda: materialize(run(call)))

    def own() -> Any:
        try:
            return materialize(_summed(context, module, run, call))
        except Exception:  # raised by a forward that reads the size of the whole
            return None

    made, problem = try_call(module, own)
    return context.comm.votes([not problem and alike(made, expected)]) == [context.world_size]


def _summed(context: Context, module: nn.Module, run: Callable[[Any], Any], call: Any) -> Any:
    tokens = next(each for each in leaves(call) if isinstance(each, torch.Tensor))

    def shared(value: Any) -> Any:
        """Gather the whole value, from which each rank then computes its part."""
        if is_sharded(value, context) and value.is_floating_point():
            return Share.apply(value._local, context, value._layout)
        return enter(context, gathered(value)) if isinstance(value, torch.Tensor) else value

    def block(parameter: torch.Tensor) -> torch.Tensor:
        if isinstance(parameter, GlobalTensor):
            assert parameter._local is not None
            return parameter._local
        return enter(context, parameter) / context.world_size

    with holding(module, block):
        summand = run(map_leaves(shared, call))
    if is_sharded(tokens, context) and tokens._layout.dim == 0:
        return rewrap(tokens, Scatter.apply(summand, context, tokens._layout), tokens._layout)
    return sum_ranks(context, summand)
