"""Does a model do the same at the size of a call as on the few rows of its rehearsal?

A branch on the number of rows (`if len(x) > 16`) is seen by running the model without data, on FakeTensors,
at a few rows, at a rank's and at all: the same operations with the same constants must be carried out. Only
models are asked whose own code names a size; one that FakeTensors cannot run is believed.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from ronde.boundary.context import Context, Region
from ronde.boundary.guards import apart
from ronde.boundary.kept import Surroundings
from ronde.boundary.reach import Reach
from ronde.boundary.rehearsal import ROWS
from ronde.boundary.trial import preserved_random_state, twin_of

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


class _Operations(TorchDispatchMode):
    """What is carried out: operations and the numbers given to them, but for sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        numbers = [value for value in (*args, *kwargs.values()) if isinstance(value, (float, bool))]
        self.seen.append((func, *numbers))
        return func(*args, **kwargs)


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
    if rows <= ROWS or not _names_a_size(module):
        return False
    sizes = sorted({ROWS, *(context.layout(0, rows).count(rank) for rank in range(context.world_size)), rows})
    # Asked for here: in a rehearsal the batch itself must not be touched.
    forms = [_Form.of(value, axis) for value, axis in zip(values, axes, strict=True)]
    with context.enter(Region.REHEARSAL, rows):
        try:
            surroundings = Surroundings(module)
            with surroundings.restored(), preserved_random_state(), apart({}):
                first = _carried_out(module, call, forms, ROWS)
                differs = any(
                    _carried_out(module, call, forms, size) != first for size in sizes if size != ROWS
                )
        except Exception:  # no FakeTensor for an operation of its, say
            differs = False
    return context.comm.broadcast_object(differs)


def _names_a_size(module: torch.nn.Module) -> bool:
    """Whether the user's code does, where a FakeTensor cannot stay behind in a cache."""
    reach = Reach()
    for part in module.modules():
        reach.visit(part)
    cached = any(isinstance(value, functools._lru_cache_wrapper) for _, value in reach.values)
    return bool(reach.names & _SIZES) and not cached


def _carried_out(
    module: torch.nn.Module,
    call: Callable[[torch.nn.Module, list[Any]], tuple[Any, Any]],
    forms: Sequence[_Form],
    rows: int,
) -> list[Any]:
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
