"""Patches of functions that read a parameter's memory directly; they gather it first."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.dlpack

from ronde.files import OF_ALL_RANKS
from ronde.modules.torchscript import one_frame_more
from ronde.patching.patches import Patches
from ronde.patching.torch_internals import TensorBase, device_constructors
from ronde.shards.saved_parameters import SavedParameters
from ronde.shards.sharded_parameters import ShardedParameters
from ronde.shards.tensor_attribute import TensorAttribute

__all__ = ["install"]

_DATA: Any = TensorBase.data


# Functions that read their arguments' memory without `__torch_function__`.
_READING = {
    torch: (
        *("tensor", "as_tensor", "asarray", "to_dlpack", "sparse_coo_tensor", "sparse_compressed_tensor"),
        *("sparse_csr_tensor", "sparse_csc_tensor", "sparse_bsr_tensor", "sparse_bsc_tensor"),
    ),
    torch.utils.dlpack: ("to_dlpack",),
    torch.Tensor: ("new_tensor", "new", "set_", "as_subclass"),
}
_MAKING = (
    (torch.Tensor, "_make_subclass"),
    (torch.Tensor, "__new__"),
    (torch.nn.Parameter, "__new__"),
    (torch.autograd.Variable, "__new__"),
)
# Functions for which all parameters are gathered: TorchScript reads parameters without calling methods of
# their class.
_OF_TORCHSCRIPT = {
    torch.jit: ("trace", "script", "trace_module", "freeze", "save"),
    **dict.fromkeys(
        (torch.jit.RecursiveScriptModule, torch.jit.ScriptModule),
        (
            *("save", "save_to_buffer"),
            *("_save_for_lite_interpreter", "_save_to_buffer_for_lite_interpreter"),
        ),
    ),
}


def install(patches: Patches, parameters: ShardedParameters, saved: SavedParameters) -> None:
    def touching(plain: Callable[..., Any]) -> Callable[..., Any]:
        """Unshard the arguments before a call."""

        @functools.wraps(plain)
        def call(*args: Any, **kwargs: Any) -> Any:
            parameters.touch((*args, *kwargs.values()))
            return plain(*args, **kwargs)

        return call

    def whole(plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def call(*args: Any, **kwargs: Any) -> Any:
            parameters.pin()
            return plain(*args, **(one_frame_more(args, kwargs) if plain is script else kwargs))

        vars(call)[OF_ALL_RANKS] = parameters.pin
        return call

    script: Any = torch.jit.script
    # It caches which functions make tensors at its first call.
    device_constructors()
    for owner, names in _READING.items():
        for name in names:
            patches.set(owner, name, touching(getattr(owner, name)))
    for owner, name in _MAKING:
        patches.set(owner, name, staticmethod(touching(getattr(owner, name))))
    for owner, names in _OF_TORCHSCRIPT.items():
        for name in names:
            patches.set(owner, name, whole(getattr(owner, name)))
    plain_nested: Any = torch.nested.nested_tensor

    @functools.wraps(plain_nested)
    def nested_tensor(tensor_list: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        parameters.touch(tensor_list if isinstance(tensor_list, (list, tuple)) else ())
        return plain_nested(tensor_list, *args, **kwargs)

    patches.set(torch.nested, "nested_tensor", nested_tensor)
    patches.set(torch.Tensor, "data", _telling(parameters))
    patches.set(torch.autograd.graph, "disable_saved_tensors_hooks", _without(parameters, saved))


def _telling(parameters: ShardedParameters) -> TensorAttribute:
    """Wrap `data`, by which backward hooks write to parameters without a version change."""

    def read(tensor: torch.Tensor) -> torch.Tensor:
        found = _DATA.__get__(tensor)
        parameters.shown(tensor)
        return found

    def write(tensor: torch.Tensor, value: Any) -> None:
        parameters.touch([value])
        _DATA.__set__(tensor, value)

    return TensorAttribute(_DATA, read=read, write=write)


def _without(parameters: ShardedParameters, saved: SavedParameters) -> Callable[..., Any]:
    plain: Any = torch.autograd.graph.disable_saved_tensors_hooks

    @contextmanager
    def disable_saved_tensors_hooks(error_message: str) -> Iterator[None]:
        """Keep parameters whole until the next update: `torch.func` cannot pack saved tensors."""
        if not saved.on_top:  # the script has hooks of its own, and torch raises its own error
            with plain(error_message):
                yield
            return
        parameters.pin()
        saved.uninstall()
        try:
            with plain(error_message):
                yield
        finally:
            saved.push()

    return disable_saved_tensors_hooks
