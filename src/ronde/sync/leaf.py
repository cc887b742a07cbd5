"""Weak references to leaf tensors with reduced gradients."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from ronde.patching.torch_internals import DisableTorchFunction, TensorBase

__all__ = ["Leaf", "give_gradient", "gradient_of", "gradients_of"]

# torch's own descriptor: the one that a script finds by this name may gather on access.
_GRADIENT: Any = TensorBase.grad


class Leaf:
    """Weak reference to a leaf, with its metadata for buckets.

    The metadata remains when the tensor is gone on this rank but not yet on another.

    Attributes:
        ref: weak reference; `ref() is tensor` asks whether this is the leaf of a tensor at hand.
        shape, dtype, device: metadata of the tensor at the last call of `describe`.
        stride: strides of its gradient: the tensor's own, unless elements overlap or leave gaps.
        sparse: whether its gradient may be sparse.
        hook: handle of the hook on its gradient.
    """

    __slots__ = ("__weakref__", "_described", "device", "dtype", "hook", "ref", "shape", "sparse", "stride")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.sparse = False
        self.hook: Any = None
        self.ref = weakref.ref(tensor)
        self.describe(tensor)

    def describe(self, tensor: torch.Tensor) -> None:
        """Update shape, dtype and device: `Module.to` changes them in the same tensor."""
        self._described = _description(tensor)
        with torch.no_grad(), DisableTorchFunction():
            self.shape, self.dtype, self.device = tensor.shape, tensor.dtype, tensor.device
            self.stride = torch.empty_like(tensor, device="meta").stride()

    def describes(self, tensor: torch.Tensor) -> bool:
        """Return whether the tensor is unchanged since the last `describe`."""
        return self._described == _description(tensor)

    @property
    def tensor(self) -> torch.Tensor | None:
        """The tensor, or None when it is gone."""
        tensor = self.ref()
        if tensor is not None:
            # A tensor whose last Python reference went, and that C++ still holds, must be revived (see
            # torch.multiprocessing.reductions).
            tensor._fix_weakref()  # pyright: ignore[reportAttributeAccessIssue]
        return tensor

    @property
    def gradient(self) -> torch.Tensor | None:
        """Accumulated whole gradient; None also when the tensor is gone."""
        return gradient_of(self.tensor)

    @gradient.setter
    def gradient(self, value: torch.Tensor | None) -> None:
        give_gradient(self.tensor, value)

    @property
    def bytes(self) -> int:
        return self.shape.numel() * self.dtype.itemsize


def gradient_of(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """Return the accumulated whole gradient; None also without a tensor."""
    if tensor is None:
        return None
    # `Tensor.grad` of a sharded parameter would gather it, and a mode would read the script's.
    with DisableTorchFunction():
        return _GRADIENT.__get__(tensor)


def give_gradient(tensor: torch.Tensor | None, value: torch.Tensor | None) -> None:
    with DisableTorchFunction():
        _GRADIENT.__set__(tensor, value)


def gradients_of(leaves: Sequence[Leaf]) -> list[torch.Tensor | None]:
    """Return the gradient of each leaf."""
    tensors = [leaf.tensor for leaf in leaves]
    with DisableTorchFunction():
        return [None if tensor is None else _GRADIENT.__get__(tensor) for tensor in tensors]


def _description(tensor: torch.Tensor) -> tuple[object, ...]:
    with DisableTorchFunction():
        return tensor.shape, tensor.dtype, tensor.device, tensor.stride()
