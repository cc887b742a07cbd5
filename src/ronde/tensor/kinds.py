"""Kinds of torch functions, by what a global tensor must take care of; how arguments are spelled."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import torch

__all__ = [
    "METADATA",
    "VIEWS",
    "changes_first",
    "changes_shape",
    "leaves_graph",
    "lends_memory",
    "may_copy",
    "put_in",
    "spelled",
    "watches",
]

# Rules whose result is, or may be, a view of the first argument.
VIEWS = set(
    """
    view view_as reshape reshape_as flatten unflatten unsqueeze squeeze permute transpose swapaxes swapdims t
    __getitem__ __get__ detach positive contiguous
    to type_as float double half bfloat16 int long short bool byte cpu cuda
    """.split()
)

METADATA = {
    torch.Tensor.size,
    torch.Tensor.dim,
    torch.Tensor.ndimension,
    torch.Tensor.numel,
    torch.Tensor.nelement,
    torch.Tensor.element_size,
    torch.Tensor.is_floating_point,
    torch.Tensor.is_complex,
    torch.Tensor.__len__,
    torch.Tensor.get_device,
    torch.is_floating_point,
    torch.is_complex,
    torch.numel,
    *(
        getattr(torch.Tensor, name).__get__
        for name in (
            "shape",
            "ndim",
            "dtype",
            "device",
            "layout",
            "requires_grad",
            "is_leaf",
            "grad_fn",
            "is_cuda",
            "is_sparse",
            "is_sparse_csr",
            "is_nested",
            "is_mkldnn",
            "is_quantized",
            "is_meta",
            "itemsize",
            "nbytes",
            "is_mps",
            "is_cpu",
        )
    ),
}


def watches(func: Any) -> bool:
    """Whether a function's effect is bound to this very tensor of the graph."""
    return getattr(func, "__name__", "") in ("__set__", "requires_grad_", "retain_grad", "register_hook")


def lends_memory(func: Any) -> bool:
    """Whether a function hands out the tensor's memory to somebody whose writes no tensor notices."""
    return getattr(func, "__name__", "") in _LENDING


_LENDING = {"numpy", "__array__", "__dlpack__", "_to_dlpack", "storage", "untyped_storage", "data_ptr"}


def may_copy(func: Any) -> bool:
    """Whether it is a matter of strides or options if a function gives a view or a copy."""
    return getattr(func, "__name__", "") in _COPYING


_COPYING = {"reshape", "reshape_as", "flatten", "ravel", "contiguous", "to"}


def leaves_graph(func: Any) -> bool:
    """Whether it is `.data`: the memory without the graph, and with a version of its own."""
    return func == _DATA


_DATA: Any = torch.Tensor.data.__get__  # pyright: ignore[reportAttributeAccessIssue]


def changes_shape(func: Any) -> bool:
    """Whether a function that works in place changes what the tensor is, not what lies in its memory."""
    return getattr(func, "__name__", "") in _CHANGING_SHAPE


_CHANGING_SHAPE = set(
    """
    resize_ resize_as_ squeeze_ unsqueeze_ t_ transpose_ swapaxes_ swapdims_ as_strided_ set_ detach_
    requires_grad_ rename_ share_memory_
    """.split()
)


def changes_first(func: Any, kwargs: dict[str, Any]) -> bool:
    name = getattr(func, "__name__", "")
    if name == "__setitem__" or kwargs.get("inplace"):
        return True
    if name.startswith("__i") and name.endswith("__") and name not in ("__invert__", "__index__", "__int__"):
        return True
    return name.endswith("_") and not name.endswith("__")


def put_in(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Arguments of a function but what it writes to: memory that nobody may have written yet."""
    values = [value for name, value in kwargs.items() if name != "out"]
    return (args[1:] if changes_first(func, kwargs) else args), values


# What torch's parser of arguments takes for its own words (`numpy_compatibility_arg_names` there).
_NUMPYS = {"axis": "dim", "keepdims": "keepdim", "x2": "other"}
_FIRST = ("input", "x", "a", "x1")


def spelled(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same call with torch's names, its first argument by place.

    Functions written in Python, such as `torch.nn.functional.softmax`, take no other names than their own.
    """
    if not kwargs:
        return args, kwargs
    native = not isinstance(func, FunctionType)
    if not args and "condition" not in kwargs:  # which `torch.where` has first
        first = next((name for name in (_FIRST if native else _FIRST[:1]) if name in kwargs), None)
        if first is not None:
            args, kwargs = (kwargs[first],), {name: kwargs[name] for name in kwargs if name != first}
    return args, {_NUMPYS.get(name, name): value for name, value in kwargs.items()} if native else kwargs
