"""Kinds of torch functions, by the treatment that global tensors need."""

from __future__ import annotations

from typing import Any

import torch

__all__ = [
    "METADATA",
    "NUMPYS_NAMES",
    "VIEWS",
    "changes_first",
    "changes_shape",
    "leaves_graph",
    "lends_memory",
    "may_copy",
    "watches",
]

# NumPy's names of arguments, which torch accepts (`numpy_compatibility_arg_names` in its parser) and rules do
# not.
NUMPYS_NAMES = frozenset(("axis", "keepdims", "x", "a", "x1", "x2"))

# Rules whose result is, or may be, a view of the first argument.
VIEWS = set(
    """
    view view_as reshape reshape_as flatten unsqueeze squeeze permute transpose swapaxes swapdims t
    __getitem__ __get__ detach positive contiguous
    to type_as float double half bfloat16 int long short bool byte cpu cuda
    """.split()
)

METADATA = {
    *(
        getattr(torch.Tensor, name)
        for name in (
            "size dim ndimension numel nelement element_size is_floating_point is_complex __len__ get_device"
        ).split()
    ),
    *(torch.is_floating_point, torch.is_complex, torch.numel),
    *(
        getattr(torch.Tensor, name).__get__
        for name in (
            "shape ndim dtype device layout requires_grad is_leaf grad_fn is_cuda is_sparse is_sparse_csr "
            "is_nested is_mkldnn is_quantized is_meta itemsize nbytes is_mps is_cpu"
        ).split()
    ),
}


def watches(func: Any) -> bool:
    """Return whether a function's effect belongs to this tensor object in the graph."""
    return getattr(func, "__name__", "") in ("__set__", "requires_grad_", "retain_grad", "register_hook")


def lends_memory(func: Any) -> bool:
    """Return whether a function exposes the tensor's memory to untracked writes."""
    return getattr(func, "__name__", "") in _LENDING


_LENDING = {"numpy", "__array__", "__dlpack__", "_to_dlpack", "storage", "untyped_storage", "data_ptr"}


def may_copy(func: Any) -> bool:
    """Return whether strides or options decide if a function returns a view or copy."""
    return getattr(func, "__name__", "") in _COPYING


_COPYING = {"reshape", "reshape_as", "flatten", "ravel", "contiguous", "to"}


def leaves_graph(func: Any) -> bool:
    """Return whether a function is `.data`, the memory without the graph.

    Its result has a version counter of its own.
    """
    return func == _DATA


_DATA: Any = torch.Tensor.data.__get__  # pyright: ignore[reportAttributeAccessIssue]


def changes_shape(func: Any) -> bool:
    """Return whether an in-place function changes metadata rather than the contents of memory."""
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
