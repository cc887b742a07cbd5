"""Does a model do the same at the size of a call as on the few rows of its rehearsal?

A branch on the number of rows (`if len(x) > 16`) is seen by running the model without data, on FakeTensors,
at a few rows, at a rank's and at all: the same operations must be carried out, with the same numbers, and
with sizes that are the same or grow as the rows do. Only models are asked whose own code names a size; one
that FakeTensors cannot run is believed.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode, is_fake
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from ronde.boundary.context import Context, Region
from ronde.boundary.guards import apart
from ronde.boundary.kept import Surroundings
from ronde.boundary.randomness.random_state import preserved_random_state
from ronde.boundary.reach import Reach
from ronde.boundary.rehearsal.rehearse import ROWS
from ronde.boundary.rehearsal.twin import twin_of

__all__ = ["SIZE_DECIDES", "decided_by_size"]

SIZE_DECIDES = "what it does depends on how many rows there are"
_SIZES = {"shape", "size", "len", "numel", "nelement", "__len__"}


@dataclasses.dataclass(frozen=True, slots=True)
class _Form:
    """What a FakeTensor is made from; `value` is a leaf that is no tensor."""

    value: Any
    shape: tuple[int, ...] | None = None
    axis: int | None = None
    dtype: Any = None
    device: Any = None
    requires_grad: bool = False

    @classmethod
    def of(cls, value: Any, axis: int | None) -> _Form:
        if not isinstance(value, torch.Tensor):
            return cls(value)
        return cls(None, tuple(value.shape), axis, value.dtype, value.device, value.requires_grad)

    def made(self, rows: int) -> Any:
        if self.shape is None:
            return self.value
        shape = [rows if dim == self.axis else size for dim, size in enumerate(self.shape)]
        made = torch.empty(shape, dtype=self.dtype, device=self.device)
        return made.requires_grad_(self.requires_grad)


@dataclasses.dataclass(frozen=True, slots=True)
class _Operation:
    """What is carried out, with its arguments that are no tensors."""

    func: Any
    numbers: tuple[Any, ...]
    sizes: tuple[int, ...]

    def is_like(self, other: _Operation, rows: int, others: int) -> bool:
        """Whether `other`, on `others` rows, does what this one does on `rows`."""
        if (self.func, self.numbers) != (other.func, other.numbers) or len(self.sizes) != len(other.sizes):
            return False
        sizes = zip(self.sizes, other.sizes, strict=True)
        return all(mine == its or mine * others == its * rows for mine, its in sizes)


class _Operations(TorchDispatchMode):
    """Notes what is carried out."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[_Operation] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        numbers: list[Any] = []
        sizes: list[int] = []
        for number, value in [*enumerate(args), *kwargs.items()]:
            for item in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(item, (float, bool)) or (isinstance(item, int) and not _is_size(func, number)):
                    numbers.append(item)
                elif isinstance(item, int):
                    sizes.append(item)
        if func is torch.ops.aten.lift_fresh.default and args[0].numel() == 1:
            numbers.append(_number_in(args[0]))
        self.seen.append(_Operation(func, tuple(numbers), tuple(sizes)))
        return func(*args, **kwargs)


@functools.lru_cache(maxsize=4096)
def _is_size(func: Any, argument: int | str) -> bool:
    """Whether an integer given as this argument is a size, a dimension or an index: no number to count with.

    Args:
        argument: the number of a positional argument, the name of another.
    """
    if func.overloadpacket is torch.ops.aten.arange:
        return True
    known = func._schema.arguments
    kind = known[argument] if isinstance(argument, int) else next(a for a in known if a.name == argument)
    return str(kind.type) not in ("number", "Optional[number]", "Tensor", "Optional[Tensor]")


def _number_in(tensor: torch.Tensor) -> Any:
    """What `torch.tensor` has made a tensor of."""
    with _disable_current_modes():
        return None if is_fake(tensor) or tensor.device.type == "meta" else tensor.item()


def decided_by_size(
    context: Context,
    module: torch.nn.Module,
    call: Callable[[torch.nn.Module, list[Any]], tuple[Any, Any]],
    values: Sequence[Any],
    axes: Sequence[int | None],
    rows: int,
) -> bool:
    """Whether `module` does something else on `rows` rows, or on a rank's part of them, than on a few.

    Args:
        call, values, axes: as for `rehearse`; of the values only form and type matter.
    """
    few = min(rows, ROWS)
    parts = {context.layout(0, rows).count(rank) for rank in range(context.world_size)}
    sizes = sorted({*parts, rows} - {few, 0})
    if not sizes or not _names_a_size(module):
        return False
    # Asked for here: in a rehearsal the batch itself must not be touched.
    forms = [_Form.of(value, axis) for value, axis in zip(values, axes, strict=True)]
    with context.enter(Region.REHEARSAL, rows):
        try:
            surroundings = Surroundings(module)
            random_state = preserved_random_state(surroundings.hosts)
            with surroundings.restored(), random_state, apart({}):
                first = _carried_out(module, call, forms, few)
                others = {size: _carried_out(module, call, forms, size) for size in sizes}
                differs = not all(_are_alike(first, few, other, size) for size, other in others.items())
        except Exception:  # no FakeTensor for an operation of its, say
            differs = False
    return context.comm.broadcast_object(differs)


def _names_a_size(module: torch.nn.Module) -> bool:
    """Whether its code does, the user's or a library's, where a FakeTensor cannot stay behind in a cache."""
    reach = Reach()
    for part in module.modules():
        reach.visit(part)
    cached = any(isinstance(value, functools._lru_cache_wrapper) for _, value in reach.values)
    kinds = {type(part) for part in module.modules()}
    return not cached and (bool(reach.names & _SIZES) or any(map(_class_names_a_size, kinds)))


@functools.lru_cache(maxsize=4096)
def _class_names_a_size(kind: type) -> bool:
    """Whether a method of a class does, or of a class that it is derived from; not torch's own."""
    owners = [owner for owner in kind.__mro__ if not owner.__module__.startswith(("torch.", "builtins"))]
    methods = (
        item for owner in owners for item in vars(owner).values() if isinstance(item, types.FunctionType)
    )
    return any(not _SIZES.isdisjoint(method.__code__.co_names) for method in methods)


def _are_alike(first: list[_Operation], few: int, other: list[_Operation], size: int) -> bool:
    if size == 1:  # torch computes many things in another way then, but by the same numbers
        return _fractions(first) == _fractions(other)
    return len(first) == len(other) and all(
        a.is_like(b, few, size) for a, b in zip(first, other, strict=True)
    )


def _fractions(operations: list[_Operation]) -> set[float]:
    return {number for each in operations for number in each.numbers if isinstance(number, float)}


def _carried_out(
    module: torch.nn.Module,
    call: Callable[[torch.nn.Module, list[Any]], tuple[Any, Any]],
    forms: Sequence[_Form],
    rows: int,
) -> list[_Operation]:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    twin = twin_of(module, mode.from_tensor)  # memory cannot be copied inside the mode
    with mode:
        given = [form.made(rows) for form in forms]
        # Or parameters were cast in the first run only, and FakeTensors met by the runs behind the last.
        torch.clear_autocast_cache()
        try:
            with _Operations() as operations:
                call(twin, given)
        finally:
            torch.clear_autocast_cache()
    return operations.seen
