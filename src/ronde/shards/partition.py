"""Assignment of a tensor's elements to ranks, decided once for each tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ronde.patching.torch_internals import DisableTorchFunction
from ronde.shards.flat import is_dense
from ronde.shards.spec import ShardSpec
from ronde.tensor.tensor_table import TensorTable

__all__ = ["Partition", "Split", "by_kind", "can_be_cut"]

Split = Callable[[Sequence[torch.Tensor]], list[ShardSpec]]
"""Cuts tensors of one dtype and device that come together."""


class Partition:
    """Remembers the spec of each tensor.

    Args:
        split: cuts tensors that come without a decision; None leaves them whole.
        base: a partition whose shards `split` cuts once more; a spec is valid as long as the base's is.
    """

    def __init__(self, split: Split | None = None, base: Partition | None = None) -> None:
        self._split = split
        self._base = base
        # With each tensor the properties on which its spec depends.
        self._specs: TensorTable[tuple[tuple[object, ...], ShardSpec | None]] = TensorTable()

    def spec(self, tensor: torch.Tensor) -> ShardSpec | None:
        """Return the spec of a tensor; None if whole, undecided, or changed since."""
        found = self._specs.get(tensor)
        if found is None:
            return None
        kind = self._kind(tensor)
        return found[1] if found[0] == kind[: len(found[0])] else None

    def is_decided(self, tensor: torch.Tensor) -> bool:
        """Return whether a policy has decided about a tensor, even that it stays whole."""
        return tensor in self._specs

    def decided(self, tensor: torch.Tensor) -> ShardSpec | None:
        """Return a policy's spec of a tensor, even if the tensor has changed."""
        found = self._specs.get(tensor)
        return None if found is None else found[1]

    def decide(self, tensor: torch.Tensor, spec: ShardSpec | None) -> None:
        """Set a tensor's spec for any later dtype and device; None leaves it whole."""
        self._specs.set(tensor, (self._kind(tensor)[:2], spec))

    def assign(self, tensors: Sequence[torch.Tensor]) -> list[ShardSpec | None]:
        """Return the spec of each tensor, after cutting new ones. A collective.

        Returns:
            None for a tensor that stays whole.
        """
        if self._split is None:
            return [self.spec(tensor) for tensor in tensors]
        with DisableTorchFunction():
            new = [each for each in tensors if self.spec(each) is None and can_be_cut(each)]
            for members in by_kind(new):
                for tensor, spec in zip(members, self._split(members), strict=True):
                    self._specs.set(tensor, (self._kind(tensor), spec))
            return [self.spec(tensor) for tensor in tensors]

    def _kind(self, tensor: torch.Tensor) -> tuple[object, ...]:
        with DisableTorchFunction():
            kind = tensor.shape, tensor.stride(), tensor.dtype, tensor.device
        return kind if self._base is None else (*kind, self._base.spec(tensor))


def can_be_cut(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has dimensions and fills its memory.

    One without dimensions is too small to cut, and its state could not be distinguished from a count of
    steps.
    """
    if not isinstance(tensor, (torch.Tensor, torch.nn.Parameter)) or tensor.is_complex():
        return False
    return bool(tensor.dim() and tensor.numel()) and is_dense(tensor)


def by_kind(tensors: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Group tensors by dtype and device, in their order."""
    kinds: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    for each in tensors:
        kinds.setdefault((each.dtype, each.device), []).append(each)
    return list(kinds.values())
