"""`Tensor.grad` of sharded gradients: the whole is gathered when a script reads it.

Dropping or scaling gradients does not need the whole.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ronde.errors import UsageError
from ronde.patching.patches import Patches
from ronde.patching.torch_internals import TensorBase
from ronde.shards.clipping import clip_parts
from ronde.shards.tensor_attribute import TensorAttribute
from ronde.sync.gradient_shards import GradientShards
from ronde.tensor.context import Context

__all__ = ["install"]

# Two names of one attribute: scripts of asynchronous training write `_grad`.
_NAMES = ("grad", "_grad")
_FRAMES_OF_OURS = 4  # the most frames between `tensor.grad` and here


def install(
    patches: Patches,
    context: Context,
    parts: GradientShards,
    lasting: Callable[[Any], Any] = lambda value: value,
    *,
    clips: bool = True,
) -> None:
    """Make `Tensor.grad` and functions of all gradients aware of shards.

    Args:
        lasting: maps a value that becomes a gradient to the value to keep.
        clips: whether shards can be clipped; else torch clips the whole, or refuses to.
    """

    for name in _NAMES:
        native = getattr(TensorBase, name)
        patches.set(torch.Tensor, name, _attribute(native, context, parts, lasting))
    patches.set(
        torch.optim.Optimizer, "zero_grad", _zeroing(torch.optim.Optimizer.zero_grad, _of_optimizer, parts)
    )
    patches.set(
        torch.nn.Module, "zero_grad", _zeroing(torch.nn.Module.zero_grad, torch.nn.Module.parameters, parts)
    )
    if clips:
        _install_clipping(patches, context, parts)


def _install_clipping(patches: Patches, context: Context, parts: GradientShards) -> None:
    plain_clip: Any = torch.nn.utils.clip_grad_norm_

    @functools.wraps(plain_clip)
    def clip_grad_norm_(parameters: Any, max_norm: float, *args: Any, **kwargs: Any) -> torch.Tensor:
        tensors = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        if not parts or not context.on_main_thread():
            return plain_clip(tensors, max_norm, *args, **kwargs)
        clipped = clip_parts(context.comm, parts, tensors, max_norm, *args, **kwargs)
        return plain_clip(tensors, max_norm, *args, **kwargs) if clipped is None else clipped

    patches.set(torch.nn.utils, "clip_grad_norm_", clip_grad_norm_)
    patches.set(torch.nn.utils.clip_grad, "clip_grad_norm_", clip_grad_norm_)


def _is_for_its_shape() -> bool:
    """Return whether torch is making a FakeTensor, which copies the gradient's shape."""
    frame: Any = sys._getframe(2)
    for _ in range(_FRAMES_OF_OURS):
        if frame is not None and frame.f_globals.get("__name__") == "torch._subclasses.meta_utils":
            return True
        frame = frame and frame.f_back
    return False


def _attribute(
    native: Any, context: Context, parts: GradientShards, lasting: Callable[[Any], Any]
) -> TensorAttribute:
    def read(tensor: torch.Tensor) -> torch.Tensor | None:
        gradient = native.__get__(tensor)
        if gradient is not None or not parts or tensor not in parts or _is_for_its_shape():
            return gradient
        if not context.on_main_thread():
            raise UsageError(
                "a gradient that is spread over the ranks was read in another thread than the script's main "
                "one, where ranks are not in step; read it in the main thread [R374]"
            )
        return parts.whole(tensor)

    def write(tensor: torch.Tensor, gradient: torch.Tensor | None) -> None:
        gradient = lasting(gradient)
        parts.drop(tensor)
        native.__set__(tensor, gradient)

    def delete(tensor: torch.Tensor) -> None:
        parts.drop(tensor)
        native.__delete__(tensor)

    return TensorAttribute(native, read=read, write=write, delete=delete)


def _of_optimizer(optimizer: Any) -> Iterable[torch.Tensor]:
    return (tensor for group in optimizer.param_groups for tensor in group["params"])


def _zeroing(
    plain: Callable[..., Any], parameters_of: Callable[[Any], Iterable[torch.Tensor]], parts: GradientShards
) -> Callable[..., Any]:
    @functools.wraps(plain)
    def zero_grad(owner: Any, set_to_none: bool = True) -> None:
        tensors = list(parameters_of(owner)) if parts else []
        if set_to_none:
            for tensor in tensors:
                parts.drop(tensor)
            return plain(owner, set_to_none)
        parts.zero(tensors)
        with parts.aside():  # so that nothing reads the gradients
            return plain(owner, set_to_none)

    return zero_grad
