"""Random draws inside a model that runs on this rank's rows.

With `rng=global` every rank makes the draws of one device and takes its rows of them (`SlicedDraws`); so
dropout masks and samples equal the single-device ones, and every rank's generators stay in step. For
`rng=per-rank` see `rank_stream`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ronde.patching.torch_internals import HigherOrderOperator, TorchDispatchMode, current_dispatch_modes
from ronde.rng.by_parts import carry_out, is_made_of_others
from ronde.tensor.layout import Layout, memory_order
from ronde.tensor.output_axis import OutputAxis

__all__ = [
    "Draw",
    "SlicedDraws",
    "UnknownDraw",
    "drawn_dims",
    "drawn_in_kernels",
    "draws_from_default",
    "find_axis",
    "is_drawn_by_others",
    "is_random",
]

aten = torch.ops.aten

# Operations that fill in place, element by element; the tensor's own values do not matter.
_FILLS = {
    "bernoulli_",
    "uniform_",
    "normal_",
    "exponential_",
    "random_",
    "geometric_",
    "cauchy_",
    "log_normal_",
}
# Operations that make a tensor from a size, or like another tensor.
_FACTORIES = {"rand", "randn", "randint", "rand_like", "randn_like", "randint_like"}
# Operations with one draw of fixed cost for each entry or row of a tensor of parameters.
_FROM_TENSORS = {"bernoulli", "normal", "native_dropout", "multinomial"}
# Operations with dropout inside of a kernel, where rows cannot be taken: CUDA's attention.
_KERNELS = ("_scaled_dot_product_",)
# Arguments that switch the draw off.
_SWITCHES = {"dropout_p", "train", "training"}


class UnknownDraw(Exception):
    """A random operation that cannot be sliced from a whole-batch draw."""


@dataclasses.dataclass(frozen=True, slots=True)
class Draw:
    """One random operation of a forward pass, recorded in an observed call.

    Attributes:
        name: the operation.
        rank: number of dimensions of the drawn tensor.
        dim: its batch dimension, None when the draw does not depend on the batch.
        outer_first: whether other dimensions flattened into `dim` are before the batch, and not after it.
        order: the order of its dimensions in memory, if it has several rows; a single row may have another
            order.
    """

    name: str
    rank: int
    dim: int | None
    outer_first: bool = False
    order: tuple[int, ...] = ()


def is_random(func: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None) -> bool:
    """Return whether this call draws random numbers.

    Attention kernels are random operations that draw only with dropout; dropout itself, and recurrent layers,
    which arrive as one operation in inference mode, draw only in training.
    """
    if isinstance(func, HigherOrderOperator) or torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    for place, argument in enumerate(func._schema.arguments):
        if argument.name in _SWITCHES:
            given = args[place] if place < len(args) else argument.default_value
            return bool((kwargs or {}).get(argument.name, given))
    return True


def draws_from_default(func: Any, args: Sequence[Any], kwargs: dict[str, Any] | None) -> bool:
    """Return whether this call draws from a default generator, not an explicit one."""
    return is_random(func, args, kwargs) and (kwargs or {}).get("generator") is None


def is_drawn_by_others(func: Any, args: Sequence[Any], kwargs: dict[str, Any] | None) -> bool:
    """Return whether a composite call draws: dropout, attention, a recurrent layer.

    Draws of a higher-order operation are seen only in the operations that it calls.
    """
    may_draw = isinstance(func, HigherOrderOperator) or is_random(func, args, kwargs)
    return may_draw and is_made_of_others(func)


def _is_meta(kwargs: dict[str, Any]) -> bool:
    """Return whether the call asks for a meta tensor, that is for a shape."""
    device = kwargs.get("device")
    return device is not None and torch.device(device).type == "meta"


def _name(func: Any) -> str:
    return func._schema.name.split("::")[1]


def _local_shape(name: str, args: Sequence[Any]) -> Sequence[int]:
    """Return the shape of a draw on this rank's rows.

    Raises:
        UnknownDraw: the operation's rows cannot be taken.
    """
    if name in _FILLS or name.endswith("_like"):
        return args[0].shape
    if name in _FACTORIES:
        return args[-1]
    if name in _FROM_TENSORS:
        return next(value for value in args if isinstance(value, torch.Tensor)).shape
    raise UnknownDraw(name)


def drawn_dims(name: str, args: Sequence[Any]) -> int:
    """Return the number of dimensions of a call's draw.

    Raises:
        UnknownDraw: the operation's rows cannot be taken.
    """
    return len(_local_shape(name, args))


def drawn_in_kernels(draws: Sequence[Draw]) -> str:
    """Return the first operation that draws inside a kernel; empty if all are sliceable."""
    return next((draw.name for draw in draws if draw.name.startswith(_KERNELS)), "")


def find_axis(whole: Sequence[int], part: Sequence[int], rows: int, part_rows: int) -> int | None:
    """Find the dimension that scales with the batch between two runs, or None.

    Raises:
        UnknownDraw: the shapes differ in another way.
    """
    if len(whole) != len(part):
        raise UnknownDraw(f"shapes {list(whole)} and {list(part)}")
    changed = [dim for dim, (a, b) in enumerate(zip(whole, part, strict=True)) if a != b]
    if not changed:
        return None
    dim = changed[0]
    if len(changed) > 1 or whole[dim] * part_rows != part[dim] * rows or whole[dim] % rows:
        raise UnknownDraw(f"shapes {list(whole)} and {list(part)} for {rows} and {part_rows} rows")
    return dim


class SlicedDraws(TorchDispatchMode):
    """Mode that draws for the whole batch and takes this rank's rows.

    Args:
        draws: the operations in order; one that comes out of order is matched by name and rank.
        rows: the cut of the batch.
        rank: the rank that takes its rows.
    """

    supports_higher_order_operators = True

    def __init__(self, draws: Sequence[Draw], rows: Layout, rank: int) -> None:
        super().__init__()
        self._draws = draws
        self._rows = rows
        self._rank = rank
        self._next = 0
        # While another one is active inside this one, it handles all draws.
        self._inner: SlicedDraws | None = None

    @staticmethod
    def active() -> SlicedDraws | None:
        """Return the innermost active mode, or None."""
        modes = [mode for mode in current_dispatch_modes() if isinstance(mode, SlicedDraws)]
        return modes[-1] if modes else None

    def __enter__(self) -> Any:
        self._outer = SlicedDraws.active()
        if self._outer is not None:
            self._outer._inner = self
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        if self._outer is not None:
            self._outer._inner = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._inner is None and is_drawn_by_others(func, args, kwargs):
            return carry_out(self, func, args, kwargs)
        # A draw from a separate generator is the same on every rank.
        if self._inner is not None or not draws_from_default(func, args, kwargs) or _is_meta(kwargs):
            return func(*args, **kwargs)
        return self._drawn(func, _name(func), args, kwargs)

    def resuming(self) -> Callable[[], SlicedDraws]:
        """Return a function that makes modes resuming at the current draw."""
        place = self._next

        def resumed() -> SlicedDraws:
            mode = SlicedDraws(self._draws, self._rows, self._rank)
            mode._next = place
            return mode

        return resumed

    def _layout_of(self, name: str, args: Sequence[Any]) -> tuple[Layout, Sequence[int]] | None:
        """Return a draw's layout and memory order; None if equal on every rank."""
        shape = _local_shape(name, args)
        mine = self._rows.count(self._rank)
        expected = self._draws[self._next : self._next + 1]
        self._next += 1
        for draw in (*expected, *self._draws):
            if draw.name != name or draw.rank != len(shape):
                continue
            if draw.dim is None:
                return None
            if shape[draw.dim] % mine == 0:
                layout = OutputAxis(draw.dim, draw.outer_first).layout(shape, self._rows, mine)
                return layout, draw.order if mine == 1 else ()
        raise UnknownDraw(
            f"the model drew {name} of shape {list(shape)}, which it did not in its first call; "
            f"use rng=per-rank, or keep its draws the same in every call [R370]"
        )

    def _drawn(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        found = self._layout_of(name, args)
        if found is None:
            return func(*args, **kwargs)
        layout, order = found
        whole = self._whole(func, name, args, kwargs, layout, order)
        if name in _FILLS:
            return args[0].copy_(layout.take(whole, self._rank))
        if isinstance(whole, tuple):
            return tuple(layout.take(value, self._rank).contiguous() for value in whole)
        return layout.take(whole, self._rank).contiguous()

    def _whole(
        self, func: Any, name: str, args: Any, kwargs: Any, layout: Layout, order: Sequence[int]
    ) -> Any:
        """Return the draw for the whole batch."""
        if name in _FILLS:
            whole = _empty_like_whole(args[0], layout, order)
            func(whole, *(self._widen(value, layout) for value in args[1:]), **kwargs)
            return whole
        if name in _FACTORIES:
            like = name.endswith("_like")
            place = 0 if like else len(args) - 1
            wide = _empty_like_whole(args[0], layout, order) if like else layout.global_shape(args[place])
            return func(*args[:place], wide, *args[place + 1 :], **kwargs)
        return func(*(self._widen(value, layout) for value in args), **kwargs)

    def _widen(self, value: Any, layout: Layout) -> Any:
        """Widen a tensor of parameters to the whole batch, with our rows in place.

        Other rows repeat our first. Their values do not matter: a draw costs the generator the same for every
        row.
        """
        if not isinstance(value, torch.Tensor) or value.dim() <= layout.dim:
            return value
        if value.shape[layout.dim] != layout.local_size(self._rank):
            return value
        whole = value.narrow(layout.dim, 0, 1).expand(layout.global_shape(value.shape)).clone()
        layout.take(whole, self._rank).copy_(value) if layout.outer == 1 else _put(
            whole, value, layout, self._rank
        )
        return whole


def _put(whole: torch.Tensor, value: torch.Tensor, layout: Layout, rank: int) -> None:
    start, stop = layout.bounds(rank)
    shape = (layout.outer, layout.rows, layout.inner)
    part = whole.unflatten(layout.dim, shape).narrow(layout.dim + 1, start, stop - start)
    part.copy_(value.unflatten(layout.dim, (layout.outer, stop - start, layout.inner)))


def _empty_like_whole(local: torch.Tensor, layout: Layout, order: Sequence[int]) -> torch.Tensor:
    """Return an empty tensor of the whole shape.

    Args:
        order: the order of its dimensions in memory, in which draws run; empty for that of the local one.
    """
    order = order or memory_order(local)
    shape = layout.global_shape(local.shape)
    whole = torch.empty([shape[dim] for dim in order], dtype=local.dtype, device=local.device)
    return whole.permute([order.index(dim) for dim in range(local.dim())])
