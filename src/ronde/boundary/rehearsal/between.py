"""What a model computes between its arguments and its outputs, and whether rows of the batch meet there.

Outputs alone do not tell: a threshold that a few rows do not reach hides what they have to do with each other
(the capacity of an expert, a norm that is clipped). So every result that is made from the batch is looked at:
it must have the batch's axis, and the part's rows there must be the whole's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from ronde.boundary.guards import Refusal
from ronde.boundary.rehearsal.rounding import TOLERANCE
from ronde.rng.draws import UnknownDraw, find_axis
from ronde.tensor.memory import tensors

__all__ = ["Between", "Step", "axes_between", "compare_between"]

# Of the batch these take shape and type only.
_NEW = ("new_", "empty", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like")


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One operation on what depends on the batch.

    Attributes:
        name: the operation.
        shape: that of its result.
        uses: places of the operations whose results it works on.
        pointwise: it computes each element from elements at the same place.
        checks: it serves a check of arguments only, which may be of all rows at once.
        tolerance: for rounding, of what was computed up to here.
        sums: of the values and of their sizes at each place of an axis, where they were asked for.
    """

    name: str
    shape: torch.Size
    uses: frozenset[int]
    pointwise: bool
    checks: bool
    tolerance: float
    sums: torch.Tensor | None

    @property
    def size(self) -> float:
        """Of its elements, at the largest place of the axis on average; 0 where it was not asked for."""
        if self.sums is None or not self.sums.numel():
            return 0.0
        return float(self.sums[1].nan_to_num(posinf=0.0).max()) * self.sums.shape[1] / self.shape.numel()


class Between(TorchDispatchMode):
    """Notes every operation on what depends on the batch, but for views.

    Args:
        batch: the tensors that hold rows of it.
        checks: whether the operation under way serves a check of arguments only.
        axes: the axis of each operation's result along which its values are summed; None: shapes only.
    """

    def __init__(
        self,
        batch: Iterable[torch.Tensor],
        checks: Callable[[], bool],
        axes: Sequence[int | None] | None = None,
    ) -> None:
        super().__init__()
        self.steps: list[Step] = []
        self._checks = checks
        self._axes = axes
        self._tolerance = 1e-9
        # What memory depends on the batch, and which operation wrote it last, if one did. A weak reference
        # keeps its place from being used again.
        self._held: dict[int, tuple[StorageWeakRef, int | None]] = {}
        for tensor in batch:
            self._hold(tensor, None)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self.seen(func, args, kwargs, result)
        return result

    def seen(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """An operation has been carried out."""
        name = func._schema.name.split("::")[1]
        given = map(_place, tensors((args, (*kwargs.values(),))))
        used = [self._held[place][1] for place in given if place in self._held]
        if not used or func.is_view or name.startswith(_NEW):
            return
        made = tensors(result)
        uses = frozenset(step for step in used if step is not None)
        # What lies behind the first of several results may be without meaning, as a kernel's workspace.
        for tensor in made if isinstance(result, list) else made[:1]:
            self._note(name, tensor, uses, torch.Tag.pointwise in func.tags)
        for tensor in made:
            self._hold(tensor, len(self.steps) - 1)

    def _note(self, name: str, tensor: torch.Tensor, uses: frozenset[int], pointwise: bool) -> None:
        place, sums = len(self.steps), None
        self._tolerance = max(self._tolerance, TOLERANCE.get(tensor.dtype, 0.0))
        if self._axes is not None and place < len(self._axes):
            sums = _sums(tensor, self._axes[place])
        self.steps.append(Step(name, tensor.shape, uses, pointwise, self._checks(), self._tolerance, sums))

    def _hold(self, tensor: torch.Tensor, step: int | None) -> None:
        reference = _storage(tensor)
        if reference is not None:
            self._held[reference.cdata] = reference, step


def _place(tensor: torch.Tensor) -> int:
    reference = _storage(tensor)
    return 0 if reference is None else reference.cdata


def _storage(tensor: torch.Tensor) -> StorageWeakRef | None:
    try:
        return StorageWeakRef(tensor.untyped_storage())
    except (NotImplementedError, RuntimeError):  # a sparse tensor has none
        return None


def _sums(tensor: torch.Tensor, axis: int | None) -> torch.Tensor | None:
    """Of the values and of their sizes at each place of an axis: [2, length]."""
    if axis is None or axis >= tensor.dim() or tensor.layout is not torch.strided or tensor.is_quantized:
        return None
    with torch.no_grad():
        values = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        values = values if values.is_floating_point() else values.double()
        values = values if values.dtype.itemsize > 1 else values.float()  # nothing adds numbers of 8 bits
        # As a sum over nothing is one over everything.
        values = values.unsqueeze(-1)
        others = [dim for dim in range(values.dim()) if dim != axis]
        wide = torch.promote_types(values.dtype, torch.float32)
        total = values.sum(others, dtype=wide)
        return torch.stack([total, torch.linalg.vector_norm(values, 1, others, dtype=wide)])


def axes_between(whole: Sequence[Step], part: Sequence[Step], rows: int, part_rows: int) -> list[int | None]:
    """The batch's axis in the result of every operation; none at all where fewer rows take other ones.

    What nothing is made of may be without: a sum of which only the gradient is asked (of energies, say).

    Raises:
        Refusal: where another one has none.
    """
    if [step.name for step in whole] != [step.name for step in part]:
        # A loop over rows, or torch's own choice: it passes over copies where a dimension is 1. Outputs tell.
        return []
    used = frozenset[int]().union(*(step.uses for step in whole if not step.checks))
    found: list[int | None] = []
    for place, (step, fewer) in enumerate(zip(whole, part, strict=True)):
        try:
            axis = find_axis(step.shape, fewer.shape, rows, part_rows)
        except UnknownDraw:
            axis = None
        if axis is None and place in used and not step.checks:
            raise _meet(step)
        found.append(axis)
    return found


def compare_between(whole: Sequence[Step], part: Sequence[Step], bounds: tuple[int, int], rows: int) -> None:
    """Hold every result on the rows from `bounds` against the same rows of the whole's.

    What is computed element by element may differ, and then what is made of it: a row's number is put in from
    outside, by which elements are picked later, say. That says nothing of other rows.

    Raises:
        Refusal: where another one differs.
    """
    differs = set[int]()
    for place, (step, fewer) in enumerate(zip(whole, part, strict=False)):
        if step.sums is None or fewer.sums is None:
            continue
        if step.uses & differs:
            differs.add(place)
        elif not any(_close(a, fewer.sums, step.tolerance) for a in _cuts(step.sums, bounds, rows)):
            if not step.pointwise and not _is_noise(step, whole):
                raise _meet(step)
            differs.add(place)


def _meet(step: Step) -> Refusal:
    return Refusal(f"rows of the batch meet inside it ({step.name})")


def _is_noise(step: Step, steps: Sequence[Step]) -> bool:
    """Whether a result is as small as the rounding of its operands: a mean of what has been centred, say."""
    sizes = [steps[place].size for place in step.uses]
    return bool(sizes) and step.size <= step.tolerance * max(sizes)


def _cuts(sums: torch.Tensor, bounds: tuple[int, int], rows: int) -> Iterator[torch.Tensor]:
    """The rows of `bounds`, for every way in which other dimensions can be flattened around them."""
    others = sums.shape[1] // rows
    for inner in range(1, others + 1):
        if others % inner == 0:
            split = sums.unflatten(1, (others // inner, rows, inner))
            yield split[:, :, slice(*bounds)].flatten(1)


def _close(a: torch.Tensor, b: torch.Tensor, tolerance: float) -> bool:
    if a.shape != b.shape:
        return False
    scale = float(a[1].nan_to_num(posinf=0.0).max()) if a.numel() else 0.0
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
