"""Matrices that tensor parallelism cuts, and divided values between them.

The cuts are those of a run (`ronde.policies.tensor_structure`). A product by columns makes a divided value,
one by rows a whole one, and any other operation a divided value of a divided operand.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from ronde.patching.torch_internals import cast, pytree
from ronde.policies.tensor_structure import placements

__all__ = ["Cut", "DividedValues", "key_of"]

Cut = Literal["columns", "rows", "whole"]

# More ranks cut the same matrices, if these divide.
_RANKS = 2


class DividedValues:
    """Cut matrices of a model, and storages of divided values."""

    def __init__(self) -> None:
        # Dimension counted from the end, and strides of the matrix.
        self._cuts: dict[int, tuple[int, tuple[int, ...]]] = {}
        self._divided: set[int] = set()

    def know(self, model: nn.Module) -> list[Tensor]:
        """Decide on a model's matrices, and return its cut parameters."""
        found = [each for each in placements(model, _RANKS) if each.cut is not None]
        for each in found:
            assert each.cut is not None
            dim = each.cut.dim - each.parameter.dim()
            self._cuts[key_of(each.parameter)] = dim, each.parameter.stride()[-2:]
        return [each.parameter for each in found]

    def multiplied(self, weight: Tensor, result: Tensor) -> Cut:
        """Note the result of a product with weights, (k, n), and return its cut."""
        cut = self._cut_of(weight)
        self._note(result, divided=cut == "columns")
        return cut

    def computed(self, func: Any, operands: Any, result: Any) -> bool:
        """Note the results of any other operation, and return whether they are divided."""
        given, made = _strided(operands), _strided(result)
        if func is cast and given and key_of(given[0]) in self._cuts:
            self._cuts[key_of(made[0])] = self._cuts[key_of(given[0])]
        divided = any(self.has(each) for each in given)
        for each in made:
            self._note(each, divided=divided)
        return divided

    def has(self, value: Tensor) -> bool:
        return key_of(value) in self._divided

    def _cut_of(self, weight: Tensor) -> Cut:
        known = self._cuts.get(key_of(weight))
        if known is None:
            return "whole"
        dim, strides = known
        turned = weight.stride()[-2:] != strides
        return "columns" if dim == (-2 if turned else -1) else "rows"

    def _note(self, value: Tensor, *, divided: bool) -> None:
        # Addresses of freed storages are used again.
        (self._divided.add if divided else self._divided.discard)(key_of(value))


def key_of(tensor: Tensor) -> int:
    """Return the address of a tensor's storage object, which views share."""
    return tensor.untyped_storage()._cdata


def _strided(values: Any) -> list[Tensor]:
    tensors = (each for each in pytree.tree_leaves(values) if isinstance(each, Tensor))
    return [each for each in tensors if each.layout is torch.strided]
