"""A mixture's call is tried: whether its tokens are independent, so that ranks can have their own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from ronde.errors import UsageError
from ronde.parallel.expert_exchange import Cannot
from ronde.rowwise.generators import States
from ronde.rowwise.undo import Held
from ronde.tensor.context import Context
from ronde.tensor.global_tensor import GlobalTensor, cut, is_global, localize, materialize
from ronde.tensor.layout import Layout
from ronde.tensor.rules.common import enter, is_sharded, rewrap
from ronde.tensor.tree import leaves, map_leaves

__all__ = ["Given", "alike", "all_equal", "try_call"]

# How far an answer may lie from that of one device, as a part of its largest entry, by its dtype.
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3}
_OF_HALVES = 0.05


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a mixture is given on this rank.

    Attributes:
        call: its arguments, with this rank's rows.
        like: the first global tensor among them.
        layout: of rows, with a dimension that counts from the start.
        size: entries of that dimension on this rank.
    """

    call: tuple[Any, Any]
    like: GlobalTensor
    layout: Layout
    size: int

    @staticmethod
    def of(context: Context, call: tuple[Any, Any]) -> Given:
        like: GlobalTensor = next(each for each in leaves(call) if is_sharded(each, context))
        layout = like._layout

        def local(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or is_global(value, context):
                return materialize(localize(value))
            spans = value.dim() > layout.dim and value.shape[layout.dim] == layout.size
            return cut(context, value, layout) if spans else enter(context, value)

        return Given(
            call=map_leaves(local, call), like=like, layout=layout, size=layout.local_size(context.rank)
        )

    def of_equal_tokens(self, rank: int) -> Given:
        """As many equal tokens as the whole batch has on rank 0, and one on each other."""
        size, dim = 1 if rank else self.layout.size, self.layout.dim
        noise = torch.Generator().manual_seed(0)

        def equal(value: Any) -> Any:
            if not self.is_of_rows(value):
                return value
            shape = (*value.shape[:dim], size, *value.shape[dim + 1 :])
            if value.is_floating_point() and value.dim() > dim + 1:
                token = torch.randn(shape[-1], generator=noise, dtype=torch.float64)
                return token.to(value).expand(shape)
            if not self.size:
                return value.new_zeros(shape)
            return value.narrow(dim, 0, 1).expand(shape)

        return dataclasses.replace(self, call=map_leaves(equal, self.call), size=size)

    def is_of_rows(self, value: Any) -> bool:
        dim = self.layout.dim
        return isinstance(value, torch.Tensor) and value.dim() > dim and value.shape[dim] == self.size

    def made_global(self, output: Any) -> Any:
        """The output for the script.

        Raises:
            Cannot: it is not of rows.
        """

        def of_rows(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            if not self.is_of_rows(value):
                raise Cannot("what it returns is not of tokens")
            return rewrap(self.like, value, self.layout)

        return map_leaves(of_rows, output)


def try_call(module: torch.nn.Module, call: Callable[[], Any]) -> tuple[Any, str]:
    """The output of a call, after which all is as before; and why ranks cannot have their own, or ""."""
    buffers = [(each, each.clone()) for each in module.buffers()]
    generators, held = (States.of_torch(()), States.of_hosts(())), Held.by(module)
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


def all_equal(given: Given, output: Any) -> bool:
    """Whether all rows of an output are one."""
    dim = given.layout.dim
    rows = [each for each in leaves(output) if given.is_of_rows(each)]
    return alike(rows, [each.narrow(dim, 0, 1).expand_as(each) for each in rows])


def alike(found: Any, expected: Any) -> bool:
    """Whether two outputs are one, but for rounding."""
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
