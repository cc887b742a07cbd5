"""Rehearsal: does this model treat rows of a batch one by one, and where do they come out?

Before a model first runs on shards, a copy of it (sharing the parameters) runs on a few rows in one
process: on all of them, on the first part, on the second part, as ranks would. What holds of the real
run must hold here: the parts' outputs are the rows of the whole's, draws included, nothing about the
batch is left behind on the module, and no value is read on the host. Anything else, any error too, means
that the module is not cut as one piece. The verdict is the main rank's, shared with all.
"""

from __future__ import annotations

import copy
import dataclasses
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy
import torch

from ronde.boundary.context import Context, Region
from ronde.boundary.graph import now, uses_older
from ronde.boundary.layout import Layout
from ronde.boundary.randomness import Draw, HostReads, RecordedDraws, SlicedDraws, UnknownDraw, find_axis
from ronde.boundary.tree import Opaque, leaves, map_leaves, structure

__all__ = ["OutputAxis", "Verdict", "rehearse"]

_ROWS = 4
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 3e-2, torch.bfloat16: 1e-1}


@dataclasses.dataclass(frozen=True, slots=True)
class OutputAxis:
    """The batch dimension of one tensor of the output; `dim` None when it does not depend on the batch."""

    dim: int | None
    outer_first: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """What rehearsal found.

    Attributes:
        sharded: the module may run on this rank's rows.
        reason: why not, as the end of a sentence; empty when it may.
        inputs: the batch axis of every leaf of the arguments, in order.
        outputs: the axis of every leaf of the output, in order.
        draws: the random operations of a forward pass, in order.
    """

    sharded: bool
    reason: str = ""
    inputs: tuple[int | None, ...] = ()
    outputs: tuple[OutputAxis, ...] = ()
    draws: tuple[Draw, ...] = ()


class _Refusal(Exception):
    """The module must not be cut; the message is the reason."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Run:
    output: Any
    draws: list[tuple[str, list[int]]]
    left_behind: dict[str, Any]


class _Trial:
    """Runs copies of one module on parts of a few rows."""

    def __init__(
        self, context: Context, module: torch.nn.Module, call: Any, values: list[Any], axes: list[int | None]
    ):
        self._context = context
        self._module = module
        self._call = call
        self._values = values
        self._axes = axes

    def run(self, start: int, stop: int, draws: Any) -> _Run:
        """One forward of a fresh copy on rows `start` to `stop`, from the same random state."""
        twin = _twin(self._module)
        before = _state(twin)
        values = [
            value if axis is None else _row_part(value, axis, start, stop)
            for value, axis in zip(self._values, self._axes, strict=True)
        ]
        recorder, conversions, start = RecordedDraws(), HostReads(), now()
        with _preserved_random_state(), draws or nullcontext(), recorder, conversions:
            output = self._call(twin, values)
        if recorder.host_reads or conversions.count:
            raise _Refusal("its forward reads a value of the batch on the host")
        if uses_older(leaves(output), start, {parameter.grad_fn for parameter in self._module.parameters()}):
            raise _Refusal("it uses a value with a gradient that was computed outside of it")
        after = _state(twin)
        left = {key: value for key, value in after.items() if not _same(before.get(key), value)}
        return _Run(output, recorder.draws, left)


def rehearse(
    context: Context,
    module: torch.nn.Module,
    call: Any,
    values: list[Any],
    axes: Sequence[int | None],
    rows: int,
) -> Verdict:
    """Try `module` on the first rows of `values`.

    Args:
        call: `call(module, values)` runs a module with the leaves of its arguments replaced.
        values: the leaves; those with an axis hold `rows` rows there, at least 2.
        axes: the batch axis of each leaf, None for leaves that enter whole.
    """
    trial = _Trial(context, module, call, values, list(axes))
    rows = min(rows, _ROWS)
    try:
        with context.enter(Region.REHEARSAL, rows):
            verdict = dataclasses.replace(_judge(trial, rows), inputs=tuple(axes))
    except _Refusal as refusal:
        verdict = Verdict(False, str(refusal))
    except UnknownDraw as draw:
        verdict = Verdict(False, f"its random draws cannot be cut ({draw})")
    except Opaque as opaque:
        verdict = Verdict(False, f"it returns tensors inside a {opaque}")
    except Exception as error:
        verdict = Verdict(False, f"a trial on {rows} rows failed ({type(error).__name__}: {_short(error)})")
    return context.comm.broadcast_object(verdict)


def _judge(trial: _Trial, rows: int) -> Verdict:
    part_rows = rows // 2
    whole, first = trial.run(0, rows, None), trial.run(0, part_rows, None)
    outputs, draws = _find_axes(whole, first, rows, part_rows)
    for outer_first in (False, True):
        candidate = [dataclasses.replace(axis, outer_first=outer_first) for axis in outputs]
        recorded = tuple(dataclasses.replace(draw, outer_first=outer_first) for draw in draws)
        problem = _compare_parts(trial, whole, candidate, recorded, rows)
        if problem is None:
            return Verdict(True, outputs=tuple(candidate), draws=recorded)
    assert problem is not None
    raise _Refusal(problem)


def _find_axes(whole: _Run, part: _Run, rows: int, part_rows: int) -> tuple[list[OutputAxis], list[Draw]]:
    if structure(whole.output) != structure(part.output):
        raise _Refusal("the form of its output depends on the number of rows")
    outputs: list[OutputAxis] = []
    for a, b in zip(leaves(whole.output), leaves(part.output), strict=True):
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            try:
                outputs.append(OutputAxis(find_axis(a.shape, b.shape, rows, part_rows)))
            except UnknownDraw as shapes:
                raise _Refusal(f"an output's {shapes}") from None
        else:
            outputs.append(OutputAxis(None))
    if all(axis.dim is None for axis in outputs):
        raise _Refusal("its output has no batch axis")
    if [name for name, _ in whole.draws] != [name for name, _ in part.draws]:
        raise _Refusal("what it draws depends on the number of rows")
    draws = [
        Draw(name, len(shape), find_axis(shape, part_shape, rows, part_rows))
        for (name, shape), (_, part_shape) in zip(whole.draws, part.draws, strict=True)
    ]
    return outputs, draws


def _compare_parts(
    trial: _Trial, whole: _Run, outputs: list[OutputAxis], draws: tuple[Draw, ...], rows: int
) -> str | None:
    """Run both parts as two ranks would; say what differs from the rows of the whole, or None."""
    cut = Layout(0, rows, 2)
    for rank in range(2):
        start, stop = cut.bounds(rank)
        part = trial.run(start, stop, SlicedDraws(draws, cut, rank) if draws else None)
        if structure(whole.output) != structure(part.output):
            return "the form of its output depends on the rows"
        for a, b, axis in zip(leaves(whole.output), leaves(part.output), outputs, strict=True):
            if axis.dim is not None:
                others = a.shape[axis.dim] // rows
                outer, inner = (others, 1) if axis.outer_first else (1, others)
                a = Layout(axis.dim, rows, 2, outer, inner).take(a, rank)
            if not _same(a, b):
                if axis.dim is None:
                    return "an output without a batch axis depends on the batch (a loss of its own?)"
                return "rows of its output depend on other rows, or on their number"
        if whole.left_behind.keys() != part.left_behind.keys():
            return "what it keeps on itself depends on the rows"
        for key, value in whole.left_behind.items():
            if not _same(value, part.left_behind[key]):
                return f"it keeps {key}, which depends on the batch, on itself"
    return None


def _short(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:120] if lines else ""


def _row_part(value: torch.Tensor, axis: int, start: int, stop: int) -> torch.Tensor:
    part = value.detach().narrow(axis, start, stop - start).clone()
    return part.requires_grad_(value.requires_grad)


def _twin(module: torch.nn.Module) -> torch.nn.Module:
    """A copy with buffers of its own that shares the parameters and does not run the user's hooks."""
    shared = {id(parameter): parameter for parameter in module.parameters()}
    return copy.deepcopy(module, shared)


def _state(module: torch.nn.Module) -> dict[str, Any]:
    """Everything kept on the module but parameters and batch statistics, copied where it is a tensor."""
    found: dict[str, Any] = {}
    for path, part in module.named_modules():
        if isinstance(part, torch.nn.modules.batchnorm._BatchNorm):
            continue
        attributes = {key: value for key, value in vars(part).items() if key not in _OWN}
        for name, value in (*part._buffers.items(), *attributes.items()):
            label = f"{path}.{name}" if path else name
            found[label] = map_leaves(_snapshot, value) if _holds_state(value) else None
    return found


_OWN = {"_parameters", "_modules", "_non_persistent_buffers_set"} | {
    key for key in vars(torch.nn.Module()) if key.endswith("_hooks") or "hooks_" in key
} | {"_buffers"}  # fmt: skip


def _holds_state(value: Any) -> bool:
    return isinstance(value, (torch.Tensor, tuple, list, dict, int, float, numpy.ndarray))


def _snapshot(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else copy.copy(value)


def _same(a: Any, b: Any) -> bool:
    """Equal within the rounding of a different number of rows."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        tolerance = _TOLERANCE.get(a.dtype, 0.0)
        if not tolerance:
            return torch.equal(a, b)
        scale = a.detach().abs().nan_to_num().max().item() if a.numel() else 0.0
        return torch.allclose(a.detach(), b.detach(), rtol=tolerance, atol=tolerance * scale, equal_nan=True)
    if isinstance(a, numpy.ndarray) or isinstance(b, numpy.ndarray):
        return bool(numpy.array_equal(a, b))
    if isinstance(a, float) and isinstance(b, float):
        return abs(a - b) <= 1e-6 * max(abs(a), abs(b)) or (a != a and b != b)
    if isinstance(a, (tuple, list, dict)):
        if structure(a) != structure(b):
            return False
        return all(_same(x, y) for x, y in zip(leaves(a), leaves(b), strict=True))
    if isinstance(a, (int, str, bool, type(None))):
        return type(a) is type(b) and a == b
    return type(a) is type(b)


@contextmanager
def _preserved_random_state() -> Iterator[None]:
    """Leave every generator as it was; each run in here starts from the same state."""
    python, numbers = random.getstate(), numpy.random.get_state()
    devices: Sequence[int] = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=list(devices)):
        try:
            yield
        finally:
            random.setstate(python)
            numpy.random.set_state(numbers)
