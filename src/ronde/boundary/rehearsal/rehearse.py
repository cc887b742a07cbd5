"""Rehearsal: does this model treat rows of a batch one by one, and where do they come out?

Before a model first runs on shards, a copy of it (sharing the parameters) runs on a few rows in one
process: on all of them, on the first part, on the second part, as ranks would. What holds of the real
run must hold here: the parts' outputs are the rows of the whole's, draws included, nothing about the
batch is left behind on the module or around it, nothing but its own is changed, and no value is read on the
host. Then each row in turn is spoilt, and the others must not notice. Anything else, any error too, means
that the module is not cut as one piece. The verdict is the main rank's, shared with all.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from ronde.boundary.guards import Refusal, short
from ronde.boundary.kept import kept_tensors
from ronde.boundary.members import in_cell
from ronde.boundary.rehearsal.backward_trial import compare_gradients
from ronde.boundary.rehearsal.between import axes_between, compare_between
from ronde.boundary.rehearsal.trial import Run, Trial, same
from ronde.boundary.rehearsal.written_on import described
from ronde.modules.calls import Calls
from ronde.modules.compiled import aside
from ronde.modules.joint import across_rows, without_batch
from ronde.modules.output_axis import OutputAxis
from ronde.rng.draws import Draw, SlicedDraws, UnknownDraw, find_axis
from ronde.tensor.context import Region
from ronde.tensor.global_tensor import StrayBatch
from ronde.tensor.graph import leaves_behind
from ronde.tensor.layout import Layout, memory_order
from ronde.tensor.memory import memory
from ronde.tensor.tensor_class import dispatches
from ronde.tensor.tree import Opaque, leaves, structure

__all__ = ["NO_AXIS", "ROWS", "Verdict", "prove", "rehearse"]

# Odd, so that pairs and groups do not fall into halves.
ROWS = 5
NO_AXIS = "its output has no batch axis"


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """What rehearsal found.

    Attributes:
        sharded: the module may run on this rank's rows.
        reason: why not, as the end of a sentence; empty when it may.
        inputs: the batch axis of every leaf of the arguments, in order.
        outputs: the axis of every leaf of the output, in order.
        draws: the random operations of a forward pass, in order.
        same_as: for every leaf of the output, which leaf of the arguments it is itself, or None.
        foreign: it uses tensors with a gradient that are no parameters of its own.
        candidate: which of the places where the batch could lie this is about.
        raised: it could not be run on a part of the batch at all.
        keeps: something on itself or around it that each call changes, the same way for whatever rows.
        joint: it normalizes by statistics of the whole batch, for which ranks meet inside it.
        batchless: it normalizes, but nothing with rows of the batch (its weights, say).
        drew: random numbers were drawn in the rehearsal, whatever came of it.
        apart: outputs of the parts were the rows of the whole's: this is the batch, though it is not cut.
    """

    sharded: bool
    reason: str = ""
    inputs: tuple[int | None, ...] = ()
    outputs: tuple[OutputAxis, ...] = ()
    draws: tuple[Draw, ...] = ()
    same_as: tuple[int | None, ...] = ()
    foreign: bool = False
    candidate: int = 0
    raised: bool = False
    keeps: str = ""
    joint: bool = False
    batchless: bool = False
    drew: bool = False
    apart: bool = False


def rehearse(
    calls: Calls,
    module: torch.nn.Module,
    call: Callable[[torch.nn.Module, list[Any]], tuple[Any, Any]],
    values: list[Any],
    axes: Sequence[int | None],
    rows: int,
) -> Verdict:
    """Try `module` on the first rows of `values`.

    Args:
        call: `call(module, values)` runs a module with the leaves of its arguments replaced; gives the output
            and the arguments as the module left them.
        values: the leaves; those with an axis hold `rows` rows there, at least 2.
        axes: the batch axis of each leaf, None for leaves that enter whole.
    """
    rows = min(rows, ROWS)
    trials: list[Trial] = []

    def judged() -> Verdict:
        trials.append(Trial(module, call, values, axes))
        return dataclasses.replace(_judge(calls, trials[0], module, rows), inputs=tuple(axes))

    return _agreed(calls, module, rows, judged, trials)


def prove(
    calls: Calls,
    module: torch.nn.Module,
    call: Callable[[torch.nn.Module, list[Any]], tuple[Any, Any]],
    values: list[Any],
    verdict: Verdict,
    rows: int,
) -> Verdict:
    """Hold a verdict against the whole batch, cut as the ranks cut it: all that its cut could change.

    For one rank, which may compute it in pieces, it is cut in two.

    A few entries are enough for an axis that the script treats as its batch. Of an axis that was only found,
    what is far apart may depend on each other, or on where it lies: time, with a dilated convolution over it.
    """

    def judged() -> Verdict:
        trial = Trial(module, call, values, verdict.inputs)
        with torch.no_grad():
            whole = trial.run(0, rows)
            cut = Layout(0, rows, max(calls.context.world_size, 2))
            parts = list(_parts(trial, verdict.draws, cut))
            problem = _compare_parts(whole, parts, verdict.outputs, cut)
            if problem is not None:
                raise Refusal(problem)
            for first in (0, 1):
                ranks = range(first, cut.world_size, 2)
                _spoil(
                    trial,
                    whole,
                    verdict.outputs,
                    [r for rank in ranks for r in range(*cut.bounds(rank))],
                    rows,
                )
        return verdict

    return _agreed(calls, module, rows, judged)


def _agreed(
    calls: Calls,
    module: torch.nn.Module,
    rows: int,
    judged: Callable[[], Verdict],
    trials: Sequence[Trial] = (),
) -> Verdict:
    """The main rank's verdict, found out without a trace.

    Args:
        trials: holds in the end the trials that were made, of which some is told whatever came of them.
    """
    try:
        # A checkpoint around the call counts what is saved for backward: not what a trial saves.
        hooks = saved_tensors_hooks(_as_it_is, _as_it_is)
        calls.function_tried = False
        with calls.context.enter(Region.REHEARSAL, rows), hooks, aside(module):
            verdict = judged()
    except (Refusal, StrayBatch) as refusal:
        verdict = Verdict(False, str(refusal))
    except UnknownDraw as draw:
        verdict = Verdict(False, f"its random draws cannot be cut ({draw})")
    except Opaque as opaque:
        verdict = Verdict(False, f"it returns tensors inside a {opaque}")
    except Exception as error:
        verdict = Verdict(False, f"a trial on {rows} rows failed ({short(error)})", raised=True)
    drew, apart = any(trial.drew for trial in trials), any(trial.apart for trial in trials)
    return calls.context.comm.broadcast_object(dataclasses.replace(verdict, drew=drew, apart=apart))


def _judge(calls: Calls, trial: Trial, module: torch.nn.Module, rows: int) -> Verdict:
    part_rows = rows // 2
    whole, first = trial.run(0, rows, watched=True), trial.run(0, part_rows, watched=True)
    outputs, draws = _find_axes(whole, first, rows, part_rows)
    between, meeting = _find_axes_between(whole, first, rows, part_rows)
    problem = kept = ""
    for outer_first in (False, True):
        candidate = [dataclasses.replace(axis, outer_first=outer_first) for axis in outputs]
        recorded = tuple(dataclasses.replace(draw, outer_first=outer_first) for draw in draws)
        cut = Layout(0, rows, 2)
        parts = list(_parts(trial, recorded, cut, between))
        problem = _compare_parts(whole, parts, candidate, cut) or ""
        if not problem:
            for row in range(rows):
                _spoil(trial, whole, candidate, [row], rows)
            compare_gradients(calls, trial, module, whole, parts, candidate, cut)
            if meeting is not None:
                raise meeting
            _compare_between(trial, parts, between, cut)
            _try_odd_rows(trial, whole, recorded, candidate, rows)
            trial.apart = True
            keeps, apart = trial.keeps_changing(rows), without_batch(whole.joints, first.joints)
            if any(each.keeps for each in apart):
                raise Refusal("its batch norm keeps statistics of something that has no batch axis")
            if not across_rows(whole.joints, first.joints, rows, part_rows):
                raise Refusal("its batch norm is given rows of the batch as channels, or some of them")
            joint = any(len(run.joints) > len(apart) for run in (whole, first, *parts))
            verdict = _verdict(module, whole, candidate, recorded)
            batchless = bool(apart) and not joint
            return dataclasses.replace(verdict, keeps=keeps, joint=joint, batchless=batchless)
        if not kept and meeting is None and _are_rows(whole, parts, candidate, cut):
            trial.apart, kept = True, problem  # something that it keeps
    raise Refusal(kept or problem)


def _find_axes_between(
    whole: Run, part: Run, rows: int, part_rows: int
) -> tuple[list[int | None], Refusal | None]:
    """The batch's axis in all that was computed; a refusal is for the end, others say more."""
    try:
        return axes_between(whole.steps, part.steps, rows, part_rows), None
    except Refusal as refusal:
        return [], refusal


def _compare_between(trial: Trial, parts: list[Run], axes: Sequence[int | None], cut: Layout) -> None:
    if not axes:
        return
    whole = trial.run(0, cut.rows, watched=True, axes=axes)
    for rank, part in enumerate(parts):
        compare_between(whole.steps, part.steps, cut.bounds(rank), cut.rows)


def _try_odd_rows(
    trial: Trial, whole: Run, draws: tuple[Draw, ...], outputs: Sequence[OutputAxis], rows: int
) -> None:
    """The parts begin at even rows: one that begins at the second shows whether a row's number matters."""
    if rows < ROWS:  # that would be a part of one row
        return
    cut = Layout(0, rows, 3)
    part = trial.run(*cut.bounds(1), SlicedDraws(draws, cut, 1) if draws else None)
    problem = _compare_parts(whole, [part], outputs, cut, first=1)
    if problem is not None:
        raise Refusal(problem)


def _verdict(
    module: torch.nn.Module, whole: Run, outputs: list[OutputAxis], draws: tuple[Draw, ...]
) -> Verdict:
    results = list(leaves(whole.output))
    tensors = [isinstance(value, torch.Tensor) for value in whole.values]
    same_as = tuple(
        next((i for i, value in enumerate(whole.values) if tensors[i] and value is result), None)
        for result in results
    )
    given = {memory(value) for value in whole.values if isinstance(value, torch.Tensor)} - {None}
    for result, same_one in zip(results, same_as, strict=True):
        if same_one is None and isinstance(result, torch.Tensor) and memory(result) in given:
            raise Refusal("it returns a view of its argument, which shares memory with it")
    known = {id(parameter) for parameter in module.parameters()} | {id(value) for value in whole.values}
    foreign = any(id(leaf) not in known for leaf in leaves_behind(results, 0))
    return Verdict(True, "", (), tuple(outputs), draws, same_as, foreign)


def _find_axes(whole: Run, part: Run, rows: int, part_rows: int) -> tuple[list[OutputAxis], list[Draw]]:
    if structure(whole.output) != structure(part.output):
        raise Refusal("the form of its output depends on the number of rows")
    if any(map(dispatches, leaves(whole.output))):
        raise Refusal("its output is of a class that carries out operations itself, below autograd")
    if any(map(_holds_tensors, leaves(whole.output))):
        raise Refusal("it returns a function that holds tensors")
    outputs: list[OutputAxis] = []
    for a, b in zip(leaves(whole.output), leaves(part.output), strict=True):
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            try:
                dim = find_axis(a.shape, b.shape, rows, part_rows)
                order = () if dim is None else tuple(memory_order(a))
                outputs.append(OutputAxis(dim, dims=a.dim(), order=order))
            except UnknownDraw as shapes:
                raise Refusal(f"an output's {shapes}") from None
        else:
            outputs.append(OutputAxis(None))
    if all(axis.dim is None for axis in outputs):
        raise Refusal(NO_AXIS)
    if [name for name, _ in whole.draws] != [name for name, _ in part.draws]:
        raise Refusal("what it draws depends on the number of rows")
    draws = [
        Draw(name, len(shape), find_axis(shape, part_shape, rows, part_rows))
        for (name, shape), (_, part_shape) in zip(whole.draws, part.draws, strict=True)
    ]
    return outputs, draws


def _holds_tensors(function: Any) -> bool:
    """Whether a function among the outputs has tensors in hand, which would be those of one rank's rows."""
    if isinstance(function, types.FunctionType):
        held = [*map(in_cell, function.__closure__ or ()), *(function.__defaults__ or ())]
    elif isinstance(function, functools.partial):
        held = [function.func, *function.args, *function.keywords.values()]
    elif isinstance(function, (types.MethodType, types.BuiltinMethodType)):
        held = [function.__self__]
    else:
        return False
    return any(map(_holds_tensors, held)) or any(
        not isinstance(each, torch.nn.Parameter)
        for value in held
        if not isinstance(value, torch.nn.Module)
        for each in kept_tensors(value)
    )


def _parts(
    trial: Trial, draws: tuple[Draw, ...], cut: Layout, axes: Sequence[int | None] = ()
) -> Iterator[Run]:
    """The same call as ranks would carry it out."""
    for rank in range(cut.world_size):
        start, stop = cut.bounds(rank)
        sliced = SlicedDraws(draws, cut, rank) if draws else None
        yield trial.run(start, stop, sliced, watched=bool(axes), axes=axes)


def _compare_parts(
    whole: Run, parts: list[Run], outputs: Sequence[OutputAxis], cut: Layout, first: int = 0
) -> str | None:
    """Say what differs between the parts, from rank `first` on, and the rows of the whole, or None."""
    for rank, part in enumerate(parts, first):
        problem = _compare_outputs(whole, part, outputs, cut, rank) or _compare_kept(whole, part)
        if problem is not None:
            return problem
    return None


def _are_rows(whole: Run, parts: list[Run], outputs: Sequence[OutputAxis], cut: Layout) -> bool:
    """Whether outputs of all parts are the rows of the whole's, whatever else is wrong."""
    return not any(_compare_outputs(whole, part, outputs, cut, rank) for rank, part in enumerate(parts))


def _compare_outputs(
    whole: Run, part: Run, outputs: Sequence[OutputAxis], cut: Layout, rank: int
) -> str | None:
    if structure(whole.output) != structure(part.output):
        return "the form of its output depends on the rows"
    for a, b, axis in zip(leaves(whole.output), leaves(part.output), outputs, strict=True):
        if not same(described(a), described(b)):
            return _WRITTEN
        if axis.dim is not None:
            a = axis.layout(a, cut).take(a, rank)
        if not same(a, b):
            return _DEPENDS if axis.dim is not None else _varies(a)
    return None


_DEPENDS = "rows of its output depend on other rows, or on their number"
_LOSS = "an output without a batch axis depends on the batch (a loss of its own?)"
_WRITTEN = "what is written on its output, or the class of that, depends on the batch"
_NUMBER = "a number or text among its outputs depends on the batch (a count of its rows?)"


def _varies(output: Any) -> str:
    """What is wrong with an output that has no batch axis, and is another one for other rows."""
    return _LOSS if isinstance(output, torch.Tensor) else _NUMBER


def _compare_kept(whole: Run, part: Run) -> str | None:
    if whole.left_behind.keys() != part.left_behind.keys():
        names = sorted(whole.left_behind.keys() ^ part.left_behind.keys())
        return f"what it keeps on itself depends on the rows ({names[0]})"
    for key, value in whole.left_behind.items():
        if not same(value, part.left_behind[key]):
            if key.startswith(("the variable", "what")):
                return f"{key} depends on the batch"
            return f"it keeps {key}, which depends on the batch, on itself"
    return None


def _spoil(trial: Trial, whole: Run, outputs: Sequence[OutputAxis], spoilt: list[int], rows: int) -> None:
    """No row may notice when others are not numbers: that finds what a shut gate lets through later.

    Comparing values, as above, overlooks what is smaller than rounding.
    """
    run = _try_spoilt(trial, spoilt, rows)
    if run is None or structure(run.output) != structure(whole.output):
        return
    alike = run.shapes == whole.shapes
    for a, b, axis in zip(leaves(whole.output), leaves(run.output), outputs, strict=True):
        if axis.dim is not None:
            a, b = _without(a, axis, spoilt, rows), _without(b, axis, spoilt, rows)
        if not same(a, b) or (alike and not _identical(a, b)):
            raise Refusal(_DEPENDS if axis.dim is not None else _varies(a))
    problem = _compare_kept(whole, run)
    if problem is not None:
        raise Refusal(problem)


def _try_spoilt(trial: Trial, spoilt: list[int], rows: int) -> Run | None:
    for finite in (False, True):
        try:
            return trial.spoilt(spoilt, rows, finite=finite)
        except Exception:  # the model may check its input, or make an index of it
            continue
    return None


def _without(value: torch.Tensor, axis: OutputAxis, spoilt: list[int], rows: int) -> torch.Tensor:
    assert axis.dim is not None
    layout = axis.layout(value, Layout(0, rows, 2))
    split = value.detach().unflatten(axis.dim, (layout.outer, rows, layout.inner))
    others = sorted({*range(rows)} - {*spoilt})
    return split.index_select(axis.dim + 1, torch.tensor(others, device=value.device))


def _identical(a: Any, b: Any) -> bool:
    """Equal to the bit: the same kernels ran on the same numbers."""
    if not isinstance(a, torch.Tensor) or a.device.type != "cpu":
        return True
    return bool(((a == b) | ((a != a) & (b != b))).all())


def _as_it_is(saved: torch.Tensor) -> torch.Tensor:
    # Without its graph: an operation that saves its own result would otherwise hold itself for ever.
    return saved.detach()
