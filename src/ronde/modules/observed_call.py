"""A call of a model that all ranks observe together: on this rank's rows, as if they were independent."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import _disable_current_modes

from ronde.errors import RondeError
from ronde.modules.effect_handlers import effects_refused
from ronde.modules.held_output import HeldOutput
from ronde.modules.sharded_call import ShardedCall, drawing
from ronde.rng.draws import Draw
from ronde.rowwise.changing_numbers import Notes, plain_number
from ronde.rowwise.comparison import Comparison
from ronde.rowwise.compiled import aside
from ronde.rowwise.normalize import Elsewhere
from ronde.rowwise.observe import Observation
from ronde.rowwise.sequence import Sequence as Steps
from ronde.rowwise.undo import Keeping, Undo
from ronde.rowwise.verdict import Verdict
from ronde.tensor.context import Context, Region
from ronde.tensor.global_tensor import StrayBatch
from ronde.tensor.graph import now
from ronde.tensor.tree import leaves, map_leaves

__all__ = [
    "Around",
    "Noting",
    "Observed",
    "Watching",
    "carry_out_one_row",
    "compare",
    "few_rows",
    "in_checkpoint",
    "observe",
    "try_out",
]

Around = Callable[[Region, ShardedCall], AbstractContextManager[None]]
# What makes numbers note what they decide, and which leaves of the arguments are such: their places.
Noting = tuple[Notes, Mapping[int, int]] | None
_ONE_ROW = "of a single row it makes something else than of one of several"


@dataclasses.dataclass(frozen=True, slots=True)
class Observed:
    """What came of an observed call.

    Attributes:
        output: of the model, on this rank's rows; None where the call was unwound.
        stands: it was not.
        verdict: what was found.
        steps: what later calls are compared by.
        start: the graph of the output is not older than this mark.
    """

    verdict: Verdict
    output: Any = None
    stands: bool = False
    steps: Steps | None = None
    start: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Watching:
    """How a call is watched.

    Attributes:
        around: what is to stand around the call of the module.
        outside: gives the variables that its code names, and what they hold.
        notes: of numbers that change from call to call.
    """

    around: Around
    outside: Callable[[], list[tuple[str, Any]]]
    notes: Noting


@dataclasses.dataclass
class _Ranks:
    """What the observation asks of the run.

    Attributes:
        rows: of the whole batch.
        mine: those of this rank.
        draws: what was drawn for rows so far, by which this rank's rows of it are taken.
    """

    context: Context
    rows: int
    mine: int
    draws: list[Draw] = dataclasses.field(default_factory=list)

    def draw(self, func: Any, args: Any, kwargs: Any, draw: Draw) -> Any:
        self.draws.append(draw)
        return func(*args, **kwargs)  # of which the mode around the observation makes our rows

    def agree(self, problem: str) -> str:
        comm = self.context.comm
        if comm.votes([bool(problem)]) == [0]:
            return ""
        return next(filter(None, comm.all_gather_object(problem)))

    def normalizes(self, func: Any) -> bool:
        return getattr(func, "normalizes_whole_batch", False)

    def together(self, work: Callable[[], Any]) -> Any:
        """Do what needs all ranks, if none of them has ended its observed call."""
        if problem := self.agree(""):
            raise Elsewhere(problem)
        with _disable_current_modes():
            return work()


def observe(call: ShardedCall, watching: Watching) -> Observed:
    """Carry a call out and watch it. It stands if rows are independent, and is unwound if they are not.

    Args:
        call: with the axes of its arguments in the verdict, of which nothing else is known.
    """
    mine = call.cut.count(call.context.rank)
    ranks = _Ranks(call.context, call.cut.rows, mine)
    with drawing(call.context, call.stream, ranks.draws, call.cut):
        return _observed(call, call.given, ranks, watching, stands=True)


def try_out(call: ShardedCall, watching: Watching, given: Any, rows: int) -> Observed:
    """Find out on a few rows what the verdict is, and unwind that; nothing stands.

    Args:
        given: the arguments, of a batch as many rows as `rows` says.
    """
    ranks = _Ranks(call.context, rows * max(call.context.world_size, 2), rows)
    with _aside() if in_checkpoint() else nullcontext():
        return _observed(call, given, ranks, watching, stands=False)


def in_checkpoint() -> bool:
    """Whether torch's checkpoint counts what the operations under way save."""
    top = torch._C._autograd._top_saved_tensors_default_hooks(True)  # pyright: ignore[reportAttributeAccessIssue]
    return top is not None and getattr(top[0], "__module__", "") == "torch.utils.checkpoint"


def _aside() -> saved_tensors_hooks:
    """Inside, a checkpoint is not told what is saved."""
    return saved_tensors_hooks(lambda saved: (saved.detach(),), lambda packed: packed[0])


def _observed(call: ShardedCall, given: Any, ranks: _Ranks, watching: Watching, *, stands: bool) -> Observed:
    notes, noted = watching.notes or (None, {})
    said, start = HeldOutput(), now()
    args, kwargs = _with_notes(given, notes, noted) if notes else given
    with (
        watching.around(Region.OBSERVED, call),
        _together(call.context, ranks.together),
        said.holding(),
        effects_refused(),
    ):
        # Inside, where parameters that have passed the Enter edge are in the place of others.
        observe_once = functools.partial(
            Observation, call.module, given, call.verdict.inputs, ranks, watching.outside, notes
        )
        observation = observe_once()
        output, verdict, steps = observation.run(lambda: call.run(args, kwargs))
        if verdict.sharded and not stands:
            if verdict.keeps:
                verdict = dataclasses.replace(
                    verdict, keeps=_changed_again(observe_once(), call, (args, kwargs))
                )
            observation.unwind()
    error = verdict.raised
    if isinstance(error, StrayBatch):
        verdict = dataclasses.replace(verdict, reason=str(error), raised=None)
    elif isinstance(error, RondeError):
        raise error
    if verdict.sharded and stands:
        said.release()
        if notes:
            output = map_leaves(plain_number, output)
        return Observed(verdict, output, True, steps, start)
    return Observed(verdict, steps=steps)


def _changed_again(observation: Observation, call: ShardedCall, given: Any) -> str:
    """What a second call changes: what the first has made, and the second finds, is none of it."""
    args, kwargs = given
    _, verdict, _ = observation.run(lambda: call.run(args, kwargs))
    if verdict.sharded:
        observation.unwind()
    return verdict.keeps if verdict.sharded else "its state"


def compare(call: ShardedCall, watching: Watching, steps: Steps) -> Observed | None:
    """Carry out a later call, and compare it with the observed one.

    None where it goes another way on some rank: it was unwound.
    """
    context = call.context
    ranks = _Ranks(context, call.cut.rows, call.cut.count(context.rank))
    comparison = Comparison(call.module, call.given, ranks, steps, watching.outside())
    said, start = HeldOutput(), now()
    args, kwargs = call.given
    with (
        watching.around(Region.SHARDED, call),
        _together(context, comparison.together),
        said.holding(),
        call.drawing(call.cut),
    ):
        output, problem = comparison.run(lambda: call.run(args, kwargs))
    if problem:
        return None
    said.release()
    return Observed(call.verdict, output, True, steps, start)


@contextmanager
def _together(context: Context, together: Callable[[Callable[[], Any]], Any]) -> Iterator[None]:
    context.together = together
    try:
        yield
    finally:
        context.together = None


def carry_out_one_row(call: ShardedCall, watching: Watching, *, stands: bool) -> Observed:
    """Carry out a call on a single row, of which it is known what becomes of several.

    It is unwound where it fails, or gives something of another form.

    Args:
        stands: whether its result is to be kept, or it is only to be found out.
    """
    undo, said, start = Undo(call.module, call.given, watching.outside()), HeldOutput(), now()
    args, kwargs = call.given
    problem = ""
    output: Any = None
    with watching.around(Region.SHARDED, call), said.holding():
        try:
            drawing = call.drawing(call.cut) if stands else nullcontext()
            with drawing, aside(call.module), Keeping(undo):
                output = call.run(args, kwargs)
            problem = "" if _is_as_found(output, call.verdict) else _ONE_ROW
        except RondeError:
            raise
        except Exception as error:
            problem = f"{_ONE_ROW} ({type(error).__name__})"
    problem = _Ranks(call.context, 1, 1).agree(problem)
    if problem or not stands:
        undo.unwind()
    if problem:
        return Observed(dataclasses.replace(call.verdict, sharded=False, reason=problem))
    if not stands:
        return Observed(call.verdict)
    said.release()
    return Observed(call.verdict, output, True, start=start)


def _is_as_found(output: Any, verdict: Verdict) -> bool:
    dims = [value.dim() if isinstance(value, torch.Tensor) else None for value in leaves(output)]
    return dims == [axis.dims for axis in verdict.outputs]


def _with_notes(given: Any, notes: Notes, noted: Mapping[int, int]) -> Any:
    leaf = itertools.count()

    def shown(value: Any) -> Any:
        place = noted.get(next(leaf))
        return value if place is None else notes.of(value, place)

    return map_leaves(shown, given, always=True)


def few_rows(given: Any, axes: Sequence[int | None], rows: int, inner: int) -> Any:
    """The first rows of what is cut among arguments, in memory of their own.

    Args:
        given: with plain tensors.
        inner: entries of the axis for each row.
    """
    remaining = iter(axes)

    def few(value: Any) -> Any:
        axis = next(remaining)
        if axis is None:
            return value
        taken = value.detach().narrow(axis, 0, rows * inner).clone()
        return taken.requires_grad_(value.requires_grad)

    return map_leaves(few, given)
