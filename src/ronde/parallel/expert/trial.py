"""Validation that a mixture's tokens are independent, so ranks can have their own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import count
from typing import Any

import torch

from ronde.comm.process_group import Comm
from ronde.errors import UsageError
from ronde.parallel.expert.token_exchange import Cannot
from ronde.rowwise.generators import States
from ronde.rowwise.operation import tensors
from ronde.rowwise.undo import ContainerSnapshot
from ronde.tensor.tree import leaves, map_leaves

__all__ = ["MixtureInputs", "alike", "all_equal", "try_call"]

# Tolerance relative to the largest entry of one device's output, by dtype.
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3}
_OF_HALVES = 0.05


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MixtureInputs:
    """Arguments of a mixture's call on ranks with different tokens.

    Attributes:
        call: arguments on this rank.
        axis: dimension of tokens, or of rows of them.
        places: indices of the leaves of arguments that have it.
        sizes: its length, by rank.
    """

    call: tuple[Any, Any]
    axis: int
    places: frozenset[int]
    sizes: tuple[int, ...]
    _comm: Comm

    @staticmethod
    def of(comm: Comm, call: tuple[Any, Any]) -> MixtureInputs:
        """Find the token axis: sizes that differ between ranks, or the first. A collective."""
        shapes = [tuple(each.shape) if isinstance(each, torch.Tensor) else () for each in leaves(call)]
        ranks = comm.all_gather_object(shapes)
        first = next(place for place, shape in enumerate(shapes) if shape)
        lengths = list(zip(*(known[first] for known in ranks), strict=True))
        axis = next((dim for dim, each in enumerate(lengths) if len(set(each)) > 1), 0)
        sizes = lengths[axis]
        places = [
            place
            for place in range(len(shapes))
            if all(known[place][axis : axis + 1] == (size,) for known, size in zip(ranks, sizes, strict=True))
        ]
        return MixtureInputs(call=call, axis=axis, places=frozenset(places), sizes=sizes, _comm=comm)

    @property
    def size(self) -> int:
        """Length of `axis` on this rank."""
        return self.sizes[self._comm.rank]

    def whole(self) -> tuple[Any, Any]:
        """Return the arguments of all ranks, concatenated. A collective."""

        def gathered(value: torch.Tensor) -> torch.Tensor:
            rows = value.detach().movedim(self.axis, 0).contiguous()
            return torch.cat(self._comm.all_gather_uneven(rows, self.sizes)).movedim(0, self.axis)

        return self._changed(gathered)

    def own(self, output: Any) -> Any:
        """Return this rank's rows of an output for the whole.

        Raises:
            Cannot: the output is not of rows.
        """
        before = sum(self.sizes[: self._comm.rank])

        def rows(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            if not self.is_of_rows(value, sum(self.sizes)):
                raise Cannot("its output is not one row per token [R256]")
            return value.narrow(self.axis, before, self.size)

        return map_leaves(rows, output)

    def of_equal_tokens(self) -> tuple[Any, Any]:
        """Return arguments of equal tokens, nearly all of them on rank 0.

        Rank 0 has as many as all ranks together, each other rank has one.
        """
        size, dim = 1 if self._comm.rank else sum(self.sizes), self.axis
        noise = torch.Generator().manual_seed(0)

        def equal(value: torch.Tensor) -> torch.Tensor:
            shape = (*value.shape[:dim], size, *value.shape[dim + 1 :])
            if value.is_floating_point() and value.dim() > dim + 1:
                token = torch.randn(shape[-1], generator=noise, dtype=torch.float64)
                return token.to(value).expand(shape)
            return value.narrow(dim, 0, 1).expand(shape) if self.size else value.new_zeros(shape)

        return self._changed(equal)

    def is_of_rows(self, value: torch.Tensor, size: int) -> bool:
        """Return whether a value has `size` entries along the axis."""
        return value.dim() > self.axis and value.shape[self.axis] == size

    def _changed(self, change: Callable[[torch.Tensor], torch.Tensor]) -> tuple[Any, Any]:
        numbers = count()
        return map_leaves(lambda each: change(each) if next(numbers) in self.places else each, self.call)


def try_call(module: torch.nn.Module, call: Callable[[], Any]) -> tuple[Any, str]:
    """Call a function, restore all state, and return output and problem.

    The problem is the reason why ranks cannot have their own tokens, or "".
    """
    buffers = [(each, each.clone()) for each in module.buffers()]
    generators, held = (States.of_torch(()), States.of_hosts(())), ContainerSnapshot.by(module)
    output, why = None, ""
    with torch.no_grad():
        try:
            output = call()
        except Cannot as cannot:
            why = str(cannot)
        except UsageError:
            why = "what its experts are given depends on their answers"
        finally:
            draws = any(each.moved() for each in generators)
            changes = any(not torch.equal(each, before) for each, before in buffers)
            kept = next(held.changes(), "")
            for each, before in buffers:
                each.copy_(before)
            for states in generators:
                states.restore()
            held.restore()
    if kept:
        return output, f"each call keeps something on it ({kept})"
    if draws:
        return output, "it draws random numbers"
    return output, "its calls change its buffers" if changes else why


def all_equal(output: Any, axis: int) -> bool:
    """Return whether all rows of an output are equal."""
    rows = tensors(list(leaves(output)))
    return alike(rows, [each.narrow(axis, 0, 1).expand_as(each) for each in rows])


def alike(found: Any, expected: Any) -> bool:
    """Return whether two outputs are equal but for rounding."""
    pairs = list(leaves(found)), list(leaves(expected))
    return len(pairs[0]) == len(pairs[1]) and all(map(_is_alike, *pairs))


def _is_alike(one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return one is other or one == other
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.is_floating_point():
        return torch.equal(one, other)
    allowed = _TOLERANCE.get(one.dtype, _OF_HALVES)
    return not one.numel() or bool((one - other).abs().max() <= allowed * other.abs().max())
