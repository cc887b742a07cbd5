"""Makes an unmodified script compute in double precision, where rounding is 1e-16.

The script and the libraries that it imports see a *view* of torch, in which the narrower types of floating
point (float32, float16, bfloat16, and complex ones alike) are those of double precision. torch's own modules,
and ronde's, keep the real one: code that torch generates depends on the names of types. Narrower values from
elsewhere (arrays, batches of a loader's workers, saved tensors) are widened.

A script that cannot run so fails loudly, since torch refuses to mix types, or its parameters show it.
"""

from __future__ import annotations

import builtins
import functools
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from ronde.patching.torch_internals import BaseDataLoaderIter, pytree

__all__ = ["compute_in_double", "widened"]

_REAL = ("float32", "float", "float16", "half", "bfloat16")
_COMPLEX = ("complex64", "cfloat", "complex32", "chalf")
_TENSOR_TYPES = ("FloatTensor", "HalfTensor", "BFloat16Tensor")
_NARROW = {
    torch.float32: torch.float64,
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.complex64: torch.complex128,
    torch.complex32: torch.complex128,
}
# Packages whose code means the type that it names.
_OWN = ("torch", "ronde", "functorch", "torchgen", "triton")


def compute_in_double() -> None:
    """Patch this process, so that the script started next computes in double precision."""
    torch.set_default_dtype(torch.float64)
    _widen_casts()
    _widen_arrivals()
    _leave_autocast_off()
    _give_view(_View())


def widened(value: Any) -> Any:
    """Return a tensor of a narrower floating-point type in double precision, anything else unchanged."""
    if type(value) is torch.Tensor and value.dtype in _NARROW:
        # A leaf stays a leaf.
        return value.detach().to(_NARROW[value.dtype]).requires_grad_(value.requires_grad)
    return value


class _View(types.ModuleType):
    """A view of torch with replaced names; attributes set on it go to torch."""

    def __init__(self) -> None:
        super().__init__("torch")
        own = _entries(self)
        own.clear()
        own.update(dict.fromkeys(_REAL, torch.float64))
        own.update(dict.fromkeys(_COMPLEX, torch.complex128))
        own.update(dict.fromkeys(_TENSOR_TYPES, torch.DoubleTensor))
        own["set_default_dtype"] = _widening(torch.set_default_dtype, lambda dtype: _NARROW.get(dtype, dtype))
        own["set_default_tensor_type"] = _ignored
        for name in ("tensor", "as_tensor", "asarray", "from_numpy", "from_dlpack"):
            own[name] = _widening_result(getattr(torch, name))
        own["frombuffer"] = _reading_memory(torch.frombuffer)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def __setattr__(self, name: str, value: Any) -> None:
        _entries(self).pop(name, None)
        setattr(torch, name, value)

    def __delattr__(self, name: str) -> None:
        _entries(self).pop(name, None)
        delattr(torch, name)

    def __dir__(self) -> list[str]:
        return dir(torch)

    @property
    def __dict__(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        return {**vars(torch), **_entries(self)}


def _entries(view: _View) -> dict[str, Any]:
    """Return the view's own dictionary, which its attribute `__dict__` hides."""
    descriptor: Any = vars(types.ModuleType)["__dict__"]
    return descriptor.__get__(view)


def _give_view(view: _View) -> None:
    """Replace `__import__`, so that importers of torch outside of `_OWN` see the view."""
    plain = builtins.__import__
    told = False

    def import_module(
        name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> Any:
        nonlocal told
        module = plain(name, globals, locals, fromlist, level)
        # The compiler would trace into this function, wherever one that it compiles imports something.
        if not told and (skip := getattr(sys.modules.get("torch._dynamo.eval_frame"), "skip_code", None)):
            skip(import_module.__code__)
            told = True
        if module is not torch:
            return module
        importer = (globals or {}).get("__name__") or ""
        return torch if importer.partition(".")[0] in _OWN else view

    builtins.__import__ = import_module


def _widen_casts() -> None:
    """Make `.float()`, `.half()`, `.bfloat16()` and `.type("torch.FloatTensor")` cast to double precision."""
    for name in ("float", "half", "bfloat16"):
        setattr(torch.Tensor, name, _cast_to_double(getattr(torch.Tensor, name)))
        setattr(torch.nn.Module, name, torch.nn.Module.double)
    plain_type: Any = torch.Tensor.type

    def type_(tensor: torch.Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(dtype, str) and dtype.rpartition(".")[2] in _TENSOR_TYPES:
            dtype = torch.float64
        return plain_type(tensor, dtype, *args, **kwargs)

    torch.Tensor.type = type_  # pyright: ignore[reportAttributeAccessIssue]


def _cast_to_double(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def cast(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        # A GradScaler's kernels take its scale in single precision only.
        within = sys._getframe(1).f_globals.get("__name__", "").startswith("torch.amp.")
        to_double: Any = torch.Tensor.to if tensor.is_complex() else torch.Tensor.double
        return (plain if within else to_double)(tensor, *args, **kwargs)

    return cast


def _widen_arrivals() -> None:
    """Widen batches, which workers may have made elsewhere, and tensors that are loaded."""
    for kind in (BaseDataLoaderIter, *BaseDataLoaderIter.__subclasses__()):
        kind._next_data = _widening_tree(kind._next_data)  # pyright: ignore[reportAttributeAccessIssue]
    rebuilding: Any = sys.modules["torch._utils"]
    rebuilding._rebuild_tensor_v2 = _widening_result(rebuilding._rebuild_tensor_v2)


def _leave_autocast_off() -> None:
    autocast: Any = torch.amp.autocast_mode.autocast
    plain = autocast.__init__

    @functools.wraps(plain)
    def init(context: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        plain(context, device_type, enabled=False)

    autocast.__init__ = init


def _widening(plain: Callable[..., Any], widen: Callable[[Any], Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def call(value: Any) -> Any:
        return plain(widen(value))

    return call


def _widening_result(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        return widened(plain(*args, **kwargs))

    return call


def _widening_tree(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        return pytree.tree_map(widened, plain(*args, **kwargs))

    return call


def _ignored(kind: Any) -> None:
    """Ignore a new default type; it stays double precision."""


def _reading_memory(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("dtype") in (torch.float64, torch.complex128):
            raise TypeError(
                f"torch.{plain.__name__} reads memory as one fixed type other than double precision [R624]"
            )
        return plain(*args, **kwargs)

    return call
