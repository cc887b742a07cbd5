"""Does a model do the same at the size of a call as on the few rows of its rehearsal?

A branch on the number of rows (`if len(x) > 16`) is seen by running the model without data, on FakeTensors,
at a few rows, at a rank's and at all: the same operations must be carried out on the same tensors, with the
same numbers, with sizes that are the same or grow as the rows do, and the model must leave the same behind.
Only models are asked whose own code names a size; one that FakeTensors cannot run is believed.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from ronde.boundary.contents import each_once
from ronde.boundary.guards import apart
from ronde.boundary.kept import Surroundings, kept_tensors
from ronde.boundary.reach import BOOKKEEPING, SIMPLE, Place, Reach
from ronde.boundary.rehearsal.operations import Operation, Operations, Origins, are_alike, use_the_same
from ronde.boundary.rehearsal.rehearse import ROWS
from ronde.boundary.rehearsal.twin import twin_of
from ronde.modules.recurrent import RECURRENT, is_packed
from ronde.rng.random_state import preserved_random_state
from ronde.tensor.context import Context, Region
from ronde.tensor.tree import leaves, structure

__all__ = ["SIZE_DECIDES", "decided_by_size"]

SIZE_DECIDES = "what it does depends on how many rows there are"
# What tells a size, or gives as many pieces as that makes.
_SIZES = {"shape", "size", "len", "numel", "nelement", "__len__"} | {
    "split",
    "chunk",
    "tensor_split",
    "unbind",
}
# Fewer than a rehearsal has at most: a size that is not less than so many (`max(len(x), 5)`) would pass there
# for the number of rows. Rehearsals of more than this many try so many, too.
_FEWER = 3


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


class _OneStep(TorchFunctionMode):
    """Lets torch's recurrent layers do the first step of a sequence only: every other one is like it.

    Without data each step is dozens of operations, and takes as long as a training step of the whole.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in _RECURRENT or is_packed(args):
            return func(*args, **(kwargs or {}))
        sequence, batch_first = args[0], args[8]
        time = int(batch_first) if sequence.dim() > 2 else 0
        output, *state = func(sequence.narrow(time, 0, 1), *args[1:])
        return output.repeat_interleave(sequence.shape[time], time), *state


_PLAIN: Any = torch._C  # where a session replaces nothing
_RECURRENT = {getattr(_PLAIN._VariableFunctions, name) for name in RECURRENT}


@dataclasses.dataclass(frozen=True, slots=True)
class _Run:
    """What a run does: operations, with what it gives back as the last, and what it leaves behind."""

    operations: list[Operation]
    left: Mapping[Any, Any]


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
    few = rows if rows <= ROWS else _FEWER
    parts = {context.layout(0, rows).count(rank) for rank in range(context.world_size)}
    sizes = sorted({*parts, rows} - {few, 0})
    if not sizes:
        return False
    reach = _reached(module)
    if not _names_a_size(module, reach):
        return False
    # Asked for here: in a rehearsal the batch itself must not be touched.
    forms = [_Form.of(value, axis) for value, axis in zip(values, axes, strict=True)]
    with context.enter(Region.REHEARSAL, rows):
        try:
            surroundings = Surroundings(module)
            around = list(kept_tensors([held for _, held in reach.values] + [p.read() for p in reach.places]))
            runs: dict[int, _Run] = {}
            for size in (few, *sizes):
                told: dict[str, str] = {}
                random_state = preserved_random_state(surroundings.hosts)
                with surroundings.restored(), random_state, apart(told):
                    run = _carried_out(module, call, forms, size, reach.places, around)
                runs[size] = dataclasses.replace(run, left={**run.left, **told})
            differs = not _are_alike(runs)
        except Exception:  # no FakeTensor for an operation of its, say
            differs = False
    return context.comm.broadcast_object(differs)


def _reached(module: torch.nn.Module) -> Reach:
    reach = Reach()
    for part in module.modules():
        reach.visit(part)
    return reach


def _names_a_size(module: torch.nn.Module, reach: Reach) -> bool:
    """Whether its code does, the user's or a library's, where a FakeTensor cannot stay behind in a cache."""
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


def _are_alike(runs: dict[int, _Run]) -> bool:
    first, *others = runs.values()
    if any(other.left != first.left for other in others):
        return False
    single = runs.pop(1, None)  # torch computes many things in another way then, but by the same numbers
    operations = {size: run.operations for size, run in runs.items()}
    return (single is None or use_the_same(first.operations, single.operations)) and are_alike(operations)


def _carried_out(
    module: torch.nn.Module,
    call: Callable[[torch.nn.Module, list[Any]], tuple[Any, Any]],
    forms: Sequence[_Form],
    rows: int,
    places: Sequence[Place],
    around: Sequence[torch.Tensor],
) -> _Run:
    """
    Args:
        places: variables that its code names.
        around: tensors that these lead to.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    twin = twin_of(module, mode.from_tensor)  # memory cannot be copied inside the mode
    before = _kept(twin, places)
    with mode:
        given = [form.made(rows) for form in forms]
        origins = Origins([*kept_tensors(twin), *kept_tensors(given), *around])
        # Or parameters were cast in the first run only, and FakeTensors met by the runs behind the last.
        torch.clear_autocast_cache()
        try:
            with Operations(origins) as operations, _OneStep():
                output, _ = call(twin, given)
        finally:
            torch.clear_autocast_cache()
    left = {key: value for key, value in _kept(twin, places).items() if before.get(key) != value}
    return _Run([*operations.seen, _given_back(output, origins)], left)


def _given_back(output: Any, origins: Origins) -> Operation:
    """What comes out, as the last operation."""
    found = list(leaves(output))
    plain = tuple(value for value in found if isinstance(value, SIMPLE))
    given = tuple(origins.of(value) for value in found if isinstance(value, torch.Tensor))
    return Operation(structure(output), plain, (), given)


def _kept(twin: torch.nn.Module, places: Sequence[Place]) -> dict[Any, Any]:
    """Numbers, texts and flags on a model and around it, as something to compare."""
    own = {
        (path, name): value
        for path, part in twin.named_modules()
        for name, value in vars(part).items()
        if name not in BOOKKEEPING or name == "training"
    }
    own.update((place.key, place.read()) for place in places)
    return dict(zip(own, each_once(own.values()), strict=True))
