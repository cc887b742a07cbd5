"""Class of a parameter while its elements are spread over ranks.

The object stays the same, and its storage has no bytes. Every operation on it comes here first, and elements
are gathered for those that need them: after that it is an ordinary `torch.nn.Parameter` again, at native
speed, until its unit is resharded. torch changes the class of its lazy parameters in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from ronde.patching.torch_internals import DisableTorchFunction, TensorBase
from ronde.tensor.tree import instances

__all__ = ["sharded_parameter"]

T = torch.Tensor
_Base: Any = TensorBase

_ATTRIBUTES = """
shape ndim dtype device layout requires_grad grad _grad grad_fn is_leaf itemsize
is_cuda is_cpu is_meta is_sparse is_quantized is_nested is_mps is_xpu is_mkldnn
_version output_nr retains_grad name is_vulkan is_ipu _backward_hooks _grad_fn
_post_accumulate_grad_hooks nbytes is_sparse_csr
""".split()
_SETTABLE = ("requires_grad", "grad", "_grad", "_backward_hooks", "_post_accumulate_grad_hooks")
_METHODS = """
dim ndimension size numel nelement stride storage_offset element_size __len__
is_floating_point is_complex is_signed is_contiguous is_inference is_conj is_neg
register_hook register_post_accumulate_grad_hook requires_grad_ retain_grad get_device
new_empty new_zeros new_ones new_full new_tensor is_shared is_pinned __hash__
has_names is_same_size _fix_weakref is_set_to
""".split()
_FUNCTIONS = (
    *(torch.numel, torch.is_floating_point, torch.is_complex),
    *(torch.empty_like, torch.zeros_like, torch.ones_like, torch.full_like),
    *(torch.rand_like, torch.randn_like, torch.is_tensor, torch.is_inference),
)
_METADATA = frozenset(
    [
        *(getattr(_Base, name).__get__ for name in _ATTRIBUTES if hasattr(_Base, name)),
        *(getattr(_Base, name).__set__ for name in _SETTABLE if hasattr(_Base, name)),
        *(getattr(T, name) for name in _METHODS if hasattr(T, name)),
        *_FUNCTIONS,
    ]
)


def sharded_parameter(
    holding: Callable[[list[torch.Tensor]], AbstractContextManager[None]],
    address: Callable[[torch.Tensor], int],
) -> type[torch.nn.Parameter]:
    """Make a class for parameters without elements.

    Args:
        holding: context manager in which the given parameters have their elements, and their own class.
        address: function that returns the address of a parameter's memory while it is whole.
    """

    class ShardedParameter(torch.nn.Parameter):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if func in _METADATA or _is_of_gradient(func):
                with DisableTorchFunction():
                    return func(*args, **kwargs)
            # For the whole operation: a composite one would otherwise gather the same units again and again.
            with holding(list(instances(cls, (args, kwargs)))):
                return func(*args, **kwargs)

        def address_of_whole(self) -> int:
            return address(self)

        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            with holding([self]):
                return self.__deepcopy__(memo)

        def __reduce_ex__(self, protocol: Any) -> Any:
            with holding([self]):
                return self.__reduce_ex__(protocol)

    return ShardedParameter


def _is_of_gradient(func: Any) -> bool:
    """Return whether `func` is one of the gradient attributes that a session replaces.

    torch names these properties instead of its own attributes.
    """
    owner = getattr(func, "__self__", None)
    return owner is not None and (owner is vars(T).get("grad") or owner is vars(T).get("_grad"))
