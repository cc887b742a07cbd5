"""Preservation of tensor subclasses and attributes when a tensor is cut or joined.

Libraries have classes for images and masks (torchvision's `tv_tensors`, MONAI's `MetaTensor`), and some keep
where a batch comes from as an attribute. A model and a script read both, but a part that is cut out of a
tensor has neither. So a part is given them, and so is an output that was put together again. Where a tensor
of another class is made out of a global tensor, torch makes its object without `__torch_function__`: so it is
given the whole value.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from ronde.patching.patches import Patches
from ronde.patching.torch_internals import DisableTorchFunctionSubclass
from ronde.tensor.deferred import DeferredScalar
from ronde.tensor.global_tensor import GlobalTensor

__all__ = [
    "alike",
    "as_plain",
    "dispatches",
    "install",
    "own_class",
    "plain",
    "written",
]

_NO_DISPATCH: Any = torch.Tensor.__torch_dispatch__  # pyright: ignore[reportAttributeAccessIssue]


def own_class(value: Any) -> type | None:
    """Return the class of a tensor if torch and ronde do not define it.

    Otherwise return None; also for classes with a `__torch_dispatch__`, which change the behaviour of
    operations.
    """
    return type(value) if _is_foreign(value) and not dispatches(value) else None


def dispatches(value: Any) -> bool:
    """Return whether a tensor's class is foreign and has its own `__torch_dispatch__`."""
    return _is_foreign(value) and type(value).__torch_dispatch__ is not _NO_DISPATCH


def _is_foreign(value: Any) -> bool:
    if type(value) is torch.Tensor or not isinstance(value, torch.Tensor):
        return False
    return not isinstance(value, (GlobalTensor, DeferredScalar, torch.nn.Parameter))


def written(value: torch.Tensor) -> dict[str, Any]:
    """Return the attributes that the script or its class set on a tensor."""
    return vars(value)


def as_plain(value: Any) -> AbstractContextManager[Any]:
    """Treat the tensor as a plain one inside the `with` block, without its `__torch_function__`."""
    return nullcontext() if own_class(value) is None else DisableTorchFunctionSubclass()


def plain(value: torch.Tensor) -> torch.Tensor:
    """View a tensor as a plain `torch.Tensor` in the same memory and graph."""
    if own_class(value) is None:
        return value
    with DisableTorchFunctionSubclass():
        return value.view_as(value)


def alike(made: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Give `made` the class and the attributes of `like`."""
    kind = own_class(like)
    if kind is not None and type(made) is not kind:
        made = made.as_subclass(kind)
    if found := written(like):
        vars(made).update(found)
    return made


def install(patches: Patches) -> None:
    """Patch conversions to tensor subclasses: `x.as_subclass(C)`, `_make_subclass(C, x)` and `C(x)`."""
    tensor: Any = torch.Tensor
    plain: Any = tensor.as_subclass

    def as_subclass(value: torch.Tensor, cls: Any) -> Any:
        """Return the value itself if `cls` is ours, as in `y.as_subclass(type(output))`."""
        return value if cls in (GlobalTensor, DeferredScalar) else plain(value, cls)

    patches.set(tensor, "as_subclass", _asking(functools.wraps(plain)(as_subclass), 0))
    for name in ("_make_subclass", "__new__"):
        patches.set(tensor, name, staticmethod(_asking(getattr(tensor, name), 1)))


def _asking(plain: Callable[..., Any], place: int) -> Callable[..., Any]:
    """Wrap a function to call `__torch_function__` of the argument at this position."""

    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = args[place] if len(args) > place else None
        if isinstance(given, (GlobalTensor, DeferredScalar)):
            return type(given).__torch_function__(plain, (type(given),), args, kwargs)
        return plain(*args, **kwargs)

    return call
