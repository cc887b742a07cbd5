"""A leaf tensor whose gradient is reduced, held weakly: it lives only as long as the script keeps it."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from ronde.patching.torch_internals import DisableTorchFunction, TensorBase

__all__ = ["Leaf", "give_gradient", "gradient_of", "gradients_of"]

# torch's own: what a script finds under the name may be made when it is asked for.
_GRADIENT: Any = TensorBase.grad


class Leaf:
    """What a bucket has to know of a tensor, also when it is gone on this rank but not yet on another.

    Attributes:
        ref: `ref() is tensor` asks whether this is the leaf of a tensor at hand.
        shape, dtype, device: the tensor's, when `describe` was last called.
        stride: of its gradient: the tensor's own, unless elements overlap or leave gaps.
        sparse: its gradient may be sparse.
        hook: the handle of the hook that hears of its gradient.
    """

    __slots__ = ("__weakref__", "_described", "device", "dtype", "hook", "ref", "shape", "sparse", "stride")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.sparse = False
        self.hook: Any = None
        self.ref = weakref.ref(tensor)
        self.describe(tensor)

    def describe(self, tensor: torch.Tensor) -> None:
        """Take over shape, dtype and device: `Module.to` changes them under the same tensor."""
        self._described = _description(tensor)
        with torch.no_grad(), DisableTorchFunction():
            self.shape, self.dtype, self.device = tensor.shape, tensor.dtype, tensor.device
            self.stride = torch.empty_like(tensor, device="meta").stride()

    def describes(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor is still what it was when `describe` was last called."""
        return self._described == _description(tensor)

    @property
    def tensor(self) -> torch.Tensor | None:
        """The tensor, or None when it is gone."""
        tensor = self.ref()
        if tensor is not None:
            # A tensor that only C++ holds comes back half dead (see torch.multiprocessing.reductions).
            tensor._fix_weakref()  # pyright: ignore[reportAttributeAccessIssue]
        return tensor

    @property
    def gradient(self) -> torch.Tensor | None:
        """What backward has accumulated, whole; None also when the tensor is gone."""
        return gradient_of(self.tensor)

    @gradient.setter
    def gradient(self, value: torch.Tensor | None) -> None:
        give_gradient(self.tensor, value)

    @property
    def bytes(self) -> int:
        return self.shape.numel() * self.dtype.itemsize


def gradient_of(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """What backward has accumulated, whole; None also for no tensor."""
    if tensor is None:
        return None
    # A parameter in parts would gather it, and a mode would ask the script's.
    with DisableTorchFunction():
        return _GRADIENT.__get__(tensor)


def give_gradient(tensor: torch.Tensor | None, value: torch.Tensor | None) -> None:
    with DisableTorchFunction():
        _GRADIENT.__set__(tensor, value)


def gradients_of(leaves: Sequence[Leaf]) -> list[torch.Tensor | None]:
    """`gradient` of each."""
    tensors = [leaf.tensor for leaf in leaves]
    with DisableTorchFunction():
        return [None if tensor is None else _GRADIENT.__get__(tensor) for tensor in tensors]


def _description(tensor: torch.Tensor) -> tuple[object, ...]:
    with DisableTorchFunction():
        return tensor.shape, tensor.dtype, tensor.device, tensor.stride()
