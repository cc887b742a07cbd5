"""Candidates for the batch among the arguments of a call, by likelihood.

The first axis comes first. The second (a recurrent network's `[T, B, F]`, its hidden state `[layers, B, H]`)
is tried where the first turns out not to be a batch, unless the plan names the axis. A batch may also be a
list with an entry for each sample, as detection models take images of several sizes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ronde.tensor.global_tensor import cuts_rows
from ronde.tensor.tree import leaves

__all__ = ["LISTED", "BatchArguments", "are_samples", "batches", "listed_samples"]

LISTED = (
    "its batch is a list with an entry for each sample; modules that it calls on the stacked samples are "
    "cut [R346]"
)
# Dimensions of images, or of a model's features of them, with a batch axis.
_DIMS_OF_IMAGES = 4

# Axes on which a batch is looked for when the plan does not name one.
_SEARCHED = (0, 1)


@dataclasses.dataclass(frozen=True, slots=True)
class BatchArguments:
    """A possible batch among a call's arguments.

    Attributes:
        rows: global rows, the unit in which ranks are given their part.
        inner: entries of the batch axis for each row (1, or T where `[B, T]` was flattened).
        axes: the batch axis of every leaf, None for leaves that enter whole.
        searched: whether the batch axis is not the first one and was not named by the user; the observed call
            must then prove it with all rows.
        likely: whether it is likely a batch. Unlikely are, inside a module in parts, a value of another
            length than the batch around it, and a value whose first axis is too short to be cut.
    """

    rows: int
    inner: int
    axes: tuple[int | None, ...]
    searched: bool = False
    likely: bool = True

    def only_vectors(self, values: list[Any]) -> bool:
        """Return whether only vectors would be cut.

        A vector may be one sample, or samples laid end to end.
        """
        taken = (value for value, axis in zip(values, self.axes, strict=True) if axis is not None)
        return all(value.dim() == 1 for value in taken)

    def all_cut(self, values: list[Any]) -> bool:
        """Return whether every tensor would be cut."""
        pairs = zip(values, self.axes, strict=True)
        return all(axis is not None for value, axis in pairs if isinstance(value, torch.Tensor))


def batches(values: list[Any], named: int | None, rows: int | None) -> list[BatchArguments]:
    """Return the candidates among the leaves of a call's arguments, the likeliest first.

    Empty without a batch.

    Args:
        named: the batch axis that the plan names, None where it is to be found.
        rows: rows of the batch of a module around this call, None outside of any.
    """
    found: dict[BatchArguments, None] = {}
    for dim in _SEARCHED if named is None else (named,):
        batch = _on_axis(values, dim, rows, searched=named is None and dim > 0)
        if batch is None:
            continue
        for other in (batch, *_with_other_axes(values, batch)):
            found.setdefault(other)
    known = {batch.axes for batch in found if not batch.searched}
    return [batch for batch in found if not batch.searched or batch.axes not in known]


def _on_axis(values: list[Any], dim: int, rows: int | None, *, searched: bool) -> BatchArguments | None:
    held = [value for value in values if cuts_rows(value)]
    if held:
        first = held[0]._layout
        if first.outer != 1 or not all(value._layout.same_cut(first) for value in held):
            return None
        length, inner = first.rows, first.inner
        likely = first.dim == 0 or any(value.shape[0] >= first.world_size for value in held)
    else:
        sizes = [value.shape[dim] for value in values if _may_be_batch(value) and value.dim() > dim]
        if not sizes:
            return None
        length, inner = rows or sizes[0], 1
        if length not in sizes:
            # Two views of the batch, one after the other.
            if searched or sizes[0] % length:
                return None
            length = sizes[0]
        likely = not rows or (length == rows and not searched)
    axes = tuple(_axis(value, length * inner, dim) for value in values)
    return BatchArguments(length, inner, axes, searched, likely)


def _with_other_axes(values: list[Any], batch: BatchArguments) -> Iterator[BatchArguments]:
    """Yield variants where some tensors have the batch elsewhere, or not at all.

    The latter only happen to have the batch's length.
    """

    length = batch.rows * batch.inner
    first = next(place for place, axis in enumerate(batch.axes) if axis is not None)

    def elsewhere(place: int, value: Any, axis: int | None) -> int | None:
        if axis is not None or not isinstance(value, torch.Tensor):
            return axis
        return next((dim for dim, size in enumerate(value.shape) if size == length), None)

    def no_square(place: int, value: Any, axis: int | None) -> int | None:
        """Leave out square matrices, such as attention masks of T by T."""
        if place == first or cuts_rows(value) or not isinstance(value, torch.Tensor):
            return axis
        return None if value.shape == (length, length) else axis

    for change in (elsewhere, no_square):
        pairs = enumerate(zip(values, batch.axes, strict=True))
        axes = tuple(change(place, value, axis) for place, (value, axis) in pairs)
        yield dataclasses.replace(batch, axes=axes)


def _may_be_batch(value: Any) -> bool:
    """Exclude parameters: a parametrization is a module called on a parameter."""
    return (
        isinstance(value, torch.Tensor) and not value.is_nested and not isinstance(value, torch.nn.Parameter)
    )


def _axis(value: Any, length: int, dim: int) -> int | None:
    if cuts_rows(value):
        return value._layout.dim
    if isinstance(value, torch.Tensor) and value.is_nested:
        return None
    if isinstance(value, torch.Tensor) and value.dim() > dim and value.shape[dim] == length:
        return dim
    return None


def listed_samples(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """Return the number of samples if the first argument may list them.

    None otherwise. An entry is a tensor or a mapping with tensors. A list of several inputs, with the batch
    on their first axis, looks the same: its observed call decides.
    """
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            return None
        if type(value) in (list, tuple) and value and all(map(_is_sample, value)):
            return len(value)
        if any(isinstance(leaf, torch.Tensor) for leaf in leaves(value)):
            return None
    return None


def are_samples(values: list[Any]) -> bool:
    """Return whether entries with a short first axis are samples, rather than few rows."""
    return any(isinstance(value, torch.Tensor) and value.dim() < _DIMS_OF_IMAGES for value in values)


def _is_sample(value: object) -> bool:
    if isinstance(value, Mapping):
        tensors = [leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor)]
        return bool(tensors) and all(map(_is_plain, tensors))
    return _is_plain(value)


def _is_plain(value: object) -> bool:
    """Return whether a value is a plain tensor.

    Rows of a cut batch are known to be rows.
    """
    return (
        isinstance(value, torch.Tensor) and not cuts_rows(value) and not isinstance(value, torch.nn.Parameter)
    )
