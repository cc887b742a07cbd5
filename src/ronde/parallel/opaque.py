"""What reads a parameter's memory without a word to its class: it is made whole before."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ronde.boundary.patches import Patches
from ronde.parallel.saved_parameters import SavedParameters
from ronde.parallel.sharded_parameters import ShardedParameters
from ronde.parallel.tensor_attribute import TensorAttribute

__all__ = ["install"]

_DATA: Any = torch._C.TensorBase.data  # pyright: ignore[reportAttributeAccessIssue]


def install(patches: Patches, parameters: ShardedParameters, saved: SavedParameters) -> None:
    def touching(plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def call(data: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(data, torch.Tensor):
                parameters.touch([data])
            return plain(data, *args, **kwargs)

        return call

    def whole(plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def call(*args: Any, **kwargs: Any) -> Any:
            parameters.pin()
            return plain(*args, **kwargs)

        return call

    for name in ("tensor", "as_tensor", "asarray"):
        patches.set(torch, name, touching(getattr(torch, name)))
    for name in ("trace", "script", "trace_module"):
        patches.set(torch.jit, name, whole(getattr(torch.jit, name)))
    plain_new: Any = torch.nn.Parameter.__new__

    def new(cls: Any, data: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(data, torch.Tensor):
            parameters.touch([data])
        return plain_new(cls, data, *args, **kwargs)

    patches.set(torch.nn.Parameter, "__new__", staticmethod(new))
    patches.add(torch.nn.Parameter, "data", _telling(parameters))
    patches.set(torch.autograd.graph, "disable_saved_tensors_hooks", _without(parameters, saved))


def _telling(parameters: ShardedParameters) -> TensorAttribute:
    """`Parameter.data`, which has no version: hooks in backward write to parameters by it."""

    def read(tensor: torch.Tensor) -> torch.Tensor:
        found = _DATA.__get__(tensor)
        parameters.shown(tensor)
        return found

    return TensorAttribute(_DATA, read=read)


def _without(parameters: ShardedParameters, saved: SavedParameters) -> Callable[..., Any]:
    plain: Any = torch.autograd.graph.disable_saved_tensors_hooks

    @contextmanager
    def disable_saved_tensors_hooks(error_message: str) -> Iterator[None]:
        """What `torch.func` saves cannot be packed, so parameters stay whole until the next update."""
        if not saved.on_top:  # the script has hooks of its own, and torch has a word for that
            with plain(error_message):
                yield
            return
        parameters.pin()
        saved.uninstall()
        try:
            with plain(error_message):
                yield
        finally:
            saved.install()

    return disable_saved_tensors_hooks
